"""The one error of this room: the caller's mistake, named by field, value and fix."""


class Invalid(ValueError):
    """A value that can never be right, whoever asks and whenever.

    Args:
        field: dotted name of the field as the caller wrote it, for example ``workers``.
        value: what was given.
        fix: what to write instead, one clause without a full stop.
    """

    def __init__(self, field: str, value: object, fix: str) -> None:
        super().__init__(f"{field}={value!r}: {fix}")
        self.field = field
        self.value = value
        self.fix = fix

    def __reduce__(self) -> tuple[type["Invalid"], tuple[str, object, str]]:
        return Invalid, (self.field, self.value, self.fix)


def require_aware(field: str, at: object) -> None:
    """Refuse a naive datetime: a deadline without a zone means another hour on another machine."""
    if at is not None and getattr(at, "tzinfo", None) is None:
        raise Invalid(field, str(at), "give a time with a time zone, for example 2026-11-30T20:00:00+00:00")
