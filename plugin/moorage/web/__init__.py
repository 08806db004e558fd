"""FastAPI: the api over HTTP, and the operators' pages."""

from moorage.web.app import create_app
from moorage.web.security import Bearer, bearer

__all__ = ["Bearer", "bearer", "create_app"]
