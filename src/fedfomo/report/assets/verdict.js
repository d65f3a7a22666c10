/** The verdict, what it rests on, and for each client one sentence and what to do next. */
const KINDS = [["good", "helped", "clearly better than alone"], ["undecided", "undecided", "undecided"], ["bad", "harmed", "clearly worse"]];

function addVerdict() {
  main.append(el("h1", {}, facts.verdict), facts.lede ? el("p", { class: "lede" }, facts.lede) : "", el("p", { class: "source" }, facts.title));
  if (facts.advice) main.append(el("p", { class: "note" }, facts.advice));
  const made = section("verdict", "Result", null);
  addTallies(made);
  if (facts.methods.length) made.append(el("div", { class: "scroll-x" }, methodTable()));
  made.append(el("dl", { class: "about-run" }, facts.about.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])));
  if (facts.sentences.length) addSentences();
}

/** One bar for each method: how many clients its gain over training alone is clear for, either way. */
function addTallies(parent) {
  const tallied = facts.methods.filter((method) => method.mean_gain).sort((a, b) => (b === own) - (a === own));
  if (!tallied.length) return;
  const number = sum(KINDS.map(([, count]) => tallied[0][count]));
  const rows = tallied.map((method) => el("div", { class: "tally-row" }, el("span", { class: "tally-name" }, method.title),
    el("div", { class: "tally", role: "img", "aria-label": `${method.title}: ${KINDS.map(([, count, word]) => `${method[count]} ${word}`).join(", ")}` },
      KINDS.filter(([, count]) => method[count]).map(([kind, count]) => {
        const bar = el("div", { class: kind }, String(method[count]));
        bar.style.flexGrow = method[count];
        return bar;
      }))));
  const seed = facts.seeds.length > 1 ? ` Counts are of seed ${facts.seed}.` : "";
  const chance = number >= 20 ? ` By chance alone, about ${(number / 40).toFixed(1)} of ${number} would look clearly better, and as many clearly worse.` : "";
  parent.append(el("ul", { class: "legend" }, KINDS.map(([kind, , word]) => el("li", {}, el("i", { class: kind }), word))), ...rows,
    el("p", { class: "about" }, `“Clearly”: the whole 95 % interval of a ${facts.word}'s gain is above or below zero, on its own test cases.${seed}${chance}`));
}

function methodTable() {
  const least = local ? local.gradients : null;
  const further = [...new Set(facts.methods.flatMap((method) => Object.keys(method.further)))];
  const rows = facts.methods.map((method) => [method.title, figure(method.mean), ...further.map((name) => (known(method.further[name]) ? Number(method.further[name].toPrecision(4)) : "–")),
    method.mean_gain ? withInterval(method.mean_gain) : "–", bytes(method.bytes_moved), least ? `${(method.gradients / least).toFixed(1)} ×` : "–"]);
  const over = facts.seeds.length > 1 ? `, ${facts.seeds.length} seeds` : "";
  const made = tableOf(["method", `average ${facts.metric}${unit}${over}`, ...further, `gain over training alone${over}`, "moved", "training work"], rows, { class: "stack" });
  facts.methods.forEach((method, k) => method === own && made.tBodies[0].rows[k].classList.add("own"));
  return made;
}

function addSentences() {
  const made = section("sentences", `What each ${facts.word} should do`, null);
  const order = gainOrder();
  const limit = 40;
  const list = el("ul", { class: "sentences" });
  const line = (client) => el("li", {},
    el("p", {}, el("button", { type: "button", onclick: () => { selectClient(client); document.getElementById("client").scrollIntoView(); } }, names[client]),
      facts.sentences[client].slice(names[client].length)),
    el("p", { class: `step ${facts.next_steps[client].kind}` }, facts.next_steps[client].text));
  list.append(...order.slice(0, limit).map(line));
  made.append(list);
  if (order.length > limit) {
    const more = el("button", { type: "button", onclick: () => { list.append(...order.slice(limit).map(line)); more.remove(); } }, `All ${order.length}`);
    made.append(el("p", {}, more));
  }
}

/** Clients by what they gained, the most first; by their score where there is nothing to compare with. */
function gainOrder() {
  const worth = (client) => (own && own.gains[client] ? own.gains[client].value : own && own.scores[client] ? own.scores[client].value : -Infinity);
  return [...everyone].sort((a, b) => worth(b) - worth(a) || a - b);
}
