// Logging out, where the page has its own log-in.
document.querySelector("[data-logout]")?.addEventListener("click", async () => {
  const root = document.body.dataset.root;
  await fetch(`${root}/logout`, { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
  location.replace(`${root}/login`);
});
