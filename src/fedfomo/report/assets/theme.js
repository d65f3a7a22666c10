/** Light, dark and paper. */
const preferred = window.matchMedia("(prefers-color-scheme: dark)");
const choice = { theme: null };
const themeButton = document.getElementById("theme");
function applyTheme() {
  const theme = printing ? "light" : choice.theme || (preferred.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  themeButton.textContent = theme === "dark" ? "Light" : "Dark";
  themeButton.setAttribute("aria-label", theme === "dark" ? "Switch to light colours" : "Switch to dark colours");
}
function changeTheme() {
  applyTheme();
  drawAll();
}
themeButton.addEventListener("click", () => {
  choice.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  changeTheme();
});
preferred.addEventListener("change", changeTheme);
function print(now) {
  if (printing === now) return;
  printing = now;
  charts.forEach(makeReady);
  changeTheme();
}
window.addEventListener("beforeprint", () => print(true));
window.addEventListener("afterprint", () => print(false));
window.matchMedia("print").addEventListener("change", (event) => print(event.matches));
