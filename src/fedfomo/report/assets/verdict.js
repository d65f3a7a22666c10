/** The headline, the figures of the verdict, and one sentence for each client. */
function headline() {
  if (!facts.is_finished) return `Round ${facts.rounds.length} of ${facts.rounds_planned}: not finished`;
  if (!local || !own || !own.mean_gain) return `${title(facts.method)} ends at ${figure(own ? own.mean : null)}${unit} on average`;
  const number = own.helped + own.harmed + own.undecided;
  const gain = own.mean_gain;
  const average = `${figure(gain.value, true)}${points} on average`;
  if (gain.low > 0) {
    const most = own.harmed ? `clearly harms ${own.harmed} of ${number}` : `clearly harms nobody`;
    return `Federating pays: ${average}, and it ${most}`;
  }
  if (gain.high < 0) return `Federating does not pay here: ${average}`;
  if (own.helped && own.harmed) return `It depends who you are: federating clearly helps ${own.helped} and harms ${own.harmed} of ${number}`;
  if (own.helped) return `Federating clearly pays for ${own.helped} of ${number}, and clearly harms nobody: ${average}`;
  if (own.harmed) return `Federating clearly harms ${own.harmed} of ${number}, and clearly helps nobody: ${average}`;
  return `Too close to call: ${average}, which may be chance`;
}

/** Of 95 % intervals, a fortieth lies wholly above the truth, and a fortieth wholly below. */
const byChance = (number) => `If federating changed nothing for any of these ${number} clients, about ${(number / 40).toFixed(1)} would look clearly helped by chance alone, and as many clearly harmed.`;

function tile(name, value, small) {
  return el("div", { class: "tile" }, el("dt", {}, name), el("dd", {}, value, small ? el("small", {}, small) : null));
}

function addVerdict() {
  main.append(el("h1", {}, headline()), el("p", { class: "lede" },
    `${facts.title}. ${title(facts.method)}, seed ${facts.seed}${own && own.gain_seeds > 1 ? `; mean gains are over ${own.gain_seeds} seeds` : ""}. Each client is judged on held-out test data of its own.`));
  if (facts.advice) main.append(el("p", { class: "note" }, facts.advice));
  const made = section("verdict", "Verdict", own && own.mean_gain
    ? "A client counts as clearly helped or harmed only if the 95 % interval of its gain over training alone, on its own test examples, lies wholly above or below zero. With few test examples, many stay undecided: that is honest, not a failure. " + byChance(own.helped + own.harmed + own.undecided)
    : null);
  const top = Math.max(...facts.methods.map((method) => method.mean).filter(known));
  const best = facts.methods.filter((method) => method.mean === top);
  const tiles = el("dl", { class: "tiles" });
  if (own && own.mean_gain) {
    const gain = own.mean_gain;
    tiles.append(tile("Mean gain over Local", `${figure(gain.value, true)}${points}`,
      known(gain.low) ? `95 % interval over clients${own.gain_seeds > 1 ? ` of ${own.gain_seeds} seeds` : ""} [${figure(gain.low, true)}, ${figure(gain.high, true)}]` : null));
  }
  if (best.length) tiles.append(tile("Best method", best.map((method) => title(method.method)).join(" and "), `${figure(top)}${unit} mean ${facts.metric}, of ${facts.methods.length} compared`));
  const moved = own ? own.bytes_moved : sum(facts.rounds.map((round) => round.bytes_down + round.bytes_up));
  tiles.append(tile("Rounds", facts.is_finished ? String(facts.rounds_planned) : `${facts.rounds.length} of ${facts.rounds_planned}`, `${names.length} clients`));
  if (own || facts.rounds.length) tiles.append(tile("Moved", bytes(moved), "models down and up, whole run"));
  tiles.append(privacyTile());
  if (own && own.mean_gain) addTally(made);
  made.append(tiles);
  if (facts.methods.length) made.append(el("div", { class: "scroll-x" }, methodTable(best)));
  if (facts.sentences.length) addSentences();
}
function privacyTile() {
  if (!facts.privacy) return tile("Privacy", "none", "no differential privacy: models were exchanged as they were");
  const { training, validation, delta } = facts.privacy;
  if (!known(delta)) return tile("Privacy", "up to each site", "what noise its records need, a site settles by itself, and tells nobody");
  const epsilon = (value) => (known(value) ? `ε ${Number(value.toPrecision(3))}` : "no guarantee");
  return tile("Privacy", epsilon(training), `for training records, δ ${delta}, the largest of any client; validation records: ${epsilon(validation)}`);
}

function addTally(parent) {
  const parts = [["good", own.helped, "clearly helped"], ["undecided", own.undecided, "undecided"], ["bad", own.harmed, "clearly harmed"]];
  const words = parts.map(([, number, word]) => `${number} ${word}`).join(", ");
  parent.append(el("div", { class: "tally", role: "img", "aria-label": `Against training alone: ${words}` },
    parts.filter(([, number]) => number).map(([kind, number]) => {
      const bar = el("div", { class: kind });
      bar.style.flexGrow = number;
      return bar;
    })),
    el("ul", { class: "legend" }, parts.map(([kind, number, word]) => el("li", {}, el("i", { class: kind }), el("strong", {}, String(number)), ` ${word}`))));
}

function methodTable(best) {
  const least = local ? local.gradients : null;
  const rows = facts.methods.map((method) => {
    const means = method.seed_means.filter(known);
    const spread = means.length > 1 ? `${figure(sum(means) / means.length)} (${means.length} seeds)` : "–";
    return [title(method.method), figure(method.mean), spread, method.mean_gain ? withInterval(method.mean_gain) : "–",
      method.mean_gain ? `${method.helped} / ${method.undecided} / ${method.harmed}` : "–", bytes(method.bytes_moved),
      least ? `${(method.gradients / least).toFixed(1)} ×` : "–"];
  });
  const made = tableOf(["method", `mean ${facts.metric}${unit}`, "over seeds", own && own.gain_seeds > 1 ? `gain over Local, ${own.gain_seeds} seeds` : "gain over Local", "helped / undecided / harmed", "moved", "training work"], rows);
  facts.methods.forEach((method, k) => best.includes(method) && made.tBodies[0].rows[k].classList.add("best"));
  return made;
}

function addSentences() {
  const made = section("sentences", "In one sentence each",
    own && own.mean_gain ? `Before → after, in ${facts.metric}${unit}; in square brackets, the 95 % interval of the difference, from the client's own test examples.` : null);
  const order = gainOrder();
  const limit = 40;
  const list = el("ul", { class: "sentences" });
  const line = (client) => {
    const gain = own && own.gains[client];
    const [kind, sign, meaning] = !gain ? ["even", "·", ""] : gain.low > 0 ? ["up", "▲", "helped: "] : gain.high < 0 ? ["down", "▼", "harmed: "] : ["even", "○", "undecided: "];
    const text = facts.sentences[client];
    return el("li", {}, el("span", { class: `mark ${kind}`, role: "img", "aria-label": meaning }, sign),
      el("button", { type: "button", onclick: () => { selectClient(client); document.getElementById("client").scrollIntoView(); } }, names[client]),
      text.slice(names[client].length));
  };
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
