import { ask } from "./refresh.js";

const form = document.querySelector("form");
const alert = document.querySelector("[role=alert]");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = form.elements.token.value.trim();
  try {
    await ask("./login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token }),
    });
    location.replace("./");
  } catch (error) {
    alert.hidden = false;
    alert.textContent = error.status === 401 ? "This token is not known, or was revoked." : error.message;
    form.elements.token.select();
  }
});
