// Runs before the first paint. Inside Airflow the page follows Airflow's own light or dark; elsewhere the system's.
(() => {
  const root = document.documentElement;
  const frame = () => {
    try {
      return window.parent !== window ? window.parent.document.documentElement : null;
    } catch {
      return null; // Framed by another origin: the system's preference stays.
    }
  };
  const outer = frame();
  root.classList.toggle("framed", window.parent !== window);
  if (!outer) return;
  const follow = () => {
    const dark = outer.classList.contains("dark");
    const light = outer.classList.contains("light");
    if (dark || light) root.dataset.theme = dark ? "dark" : "light";
  };
  follow();
  new MutationObserver(follow).observe(outer, { attributes: true, attributeFilter: ["class"] });
})();
