/** The client that is looked at, and the order of the page. */

function addBar() {
  const chooser = el("select", { id: "chooser", onchange: () => selectClient(Number(chooser.value)) }, everyone.map((client) => el("option", { value: client }, names[client])));
  const links = [["sentences", "What to do"], ["gains", "Gains"], ["cross", "Models × targets"], ["matrix", "Who learned from whom"], ["client", `One ${facts.word}`], ["give", "Give and take"], ["cost", "Cost"], ["health", "Problems"], ["reproduce", "Reproduce"]];
  const bar = el("div", { class: "bar" }, el("nav", { "aria-label": "Sections" }), el("label", { for: "chooser" }, facts.word[0].toUpperCase() + facts.word.slice(1), chooser));
  onClient((client) => { chooser.value = client; });
  document.getElementById("verdict").after(bar);
  return () => bar.firstChild.append(...links.filter(([id]) => document.getElementById(id)).map(([id, word]) => el("a", { href: `#${id}` }, word)));
}

applyTheme();
addVerdict();
const fillBar = addBar();
addGains();
addCross();
addMatrix();
main.append(el("p", { class: "divider" }, "Details"));
addClient();
addGiveAndTake();
addCost();
addHealth();
addReproduce();
fillBar();
const wanted = Number((location.hash.match(/client=(\d+)/) || [])[1] ?? gainOrder()[0] ?? 0);
if (names.length) selectClient(wanted < names.length ? wanted : 0);
state.ready = true;
drawInTurn(charts, () => { document.documentElement.dataset.drawn = "true"; });
if (!facts.is_finished) setTimeout(() => location.reload(), 5000);
