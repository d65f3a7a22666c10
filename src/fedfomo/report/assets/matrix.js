/** The receiver × giver matrix, round by round. */
const judged = facts.rounds.filter((round) => round.judgements.length);
const onlyAtEnd = !judged.length && Boolean(facts.affinity && facts.rounds.length); // nobody but the sites knows the rounds before
const moments = onlyAtEnd ? facts.rounds.slice(-1) : judged;
const QUANTITIES = {
  utility: ["Utility", "How much a giver's model would lower the receiver's validation loss, per step towards it. Blue helps, orange harms: a negative value is information too. Empty cells were not sent in this round."],
  weight: ["Mixing weight", "How much of each giver's model the receiver really mixed in, in this round. A row adds up to 1, or to 0 where nothing helped; the diagonal is a client's own model."],
  affinity: ["Affinity", "The utilities of all rounds so far, added up: what decides whose models the receiver is sent next."],
};

function matrixOf(quantity, step) {
  const size = names.length;
  const cells = everyone.map(() => new Array(size).fill(null));
  const upTo = quantity === "affinity" ? moments.slice(0, step + 1) : [moments[step]];
  if (quantity === "affinity" && (onlyAtEnd || facts.is_thinned)) return facts.affinity.map((row, r) => row.map((value, g) => (r === g ? null : value)));
  for (const round of upTo) {
    for (const judgement of round.judgements) {
      const values = quantity === "weight" ? judgement.weights : judgement.utilities;
      judgement.givers.forEach((giver, k) => {
        if (!known(values[k]) || (quantity === "affinity" && giver === judgement.receiver)) return;
        const before = quantity === "affinity" ? cells[judgement.receiver][giver] || 0 : 0;
        cells[judgement.receiver][giver] = before + values[k];
      });
    }
  }
  return cells;
}

/** The value that is drawn in full colour: nearly the largest of all rounds, so that one outlier does not hide the rest. */
function limitOf(quantity) {
  if (quantity === "weight") return 1;
  const steps = quantity === "affinity" ? [moments.length - 1] : moments.map((_, step) => step);
  const sizes = steps.flatMap((step) => matrixOf(quantity, step).flatMap((row, r) => row.filter((value, g) => known(value) && value !== 0 && r !== g).map(Math.abs)));
  sizes.sort((a, b) => a - b);
  return sizes[Math.floor(0.97 * (sizes.length - 1))] || 1;
}

function addMatrix() {
  if (moments.length && names.length > 1000) {
    section("matrix", "Who helps whom?", `${names.length} clients are too many for a matrix; one client's story shows from whom it learns.`);
    return;
  }
  if (!moments.length) {
    section("matrix", "Who helps whom?", `${title(facts.method)} keeps no record of who values whom${facts.is_finished ? "" : " yet"}.`);
    return;
  }
  const made = section("matrix", "Who helps whom?", `Each row is a receiver, each column a giver. ${facts.clients[0].group !== null ? "Coloured margins are the true groups behind the clients, which no method was told. " : ""}Clients are ordered so that those who value the same others stand together: blocks are groups that the clients found by themselves.`);
  const current = { quantity: facts.is_thinned ? "weight" : "affinity", step: moments.length - 1, timer: null };
  const limits = {};
  const limit = () => (limits[current.quantity] ??= limitOf(current.quantity));
  const explanation = el("p", { class: "about" });
  const counter = el("output", { id: "round-shown", for: "round" });
  const slider = el("input", { type: "range", id: "round", min: 0, max: moments.length - 1, step: 1, value: current.step, oninput: () => { stop(); go(Number(slider.value)); } });
  const play = el("button", { type: "button", id: "play", onclick: () => (current.timer ? stop() : start()) }, "▶ Play");
  const offered = Object.entries(QUANTITIES).filter(([quantity]) => (quantity === "affinity" ? facts.affinity || !facts.is_thinned : !onlyAtEnd));
  const choices = el("fieldset", { class: "segmented" }, el("legend", {}, "Quantity"), offered.map(([quantity, [word]]) =>
    el("label", {}, el("input", { type: "radio", name: "quantity", value: quantity, checked: quantity === current.quantity, onchange: () => { current.quantity = quantity; refresh(); } }), word)));
  const groups = [...new Set(facts.clients.flatMap((client) => [client.group, client.target]))].filter(known).sort((a, b) => a - b);
  const groupColour = (group) => GROUPS[group % GROUPS.length];
  made.append(el("div", { class: "controls" }, choices, el("label", { for: "round" }, "Round", slider), counter, play), explanation);
  const chart = addChart(made, {
    id: "matrix", label: "Matrix of receivers and givers. Left and right arrow keys change the round, up and down the receiver.",
    traces: () => [heat(), ...(groups.length ? margins() : [])],
    layout: () => {
      const width = printing ? 680 : chart.plot.clientWidth || 600;
      const ticks = (order) => ({ tickvals: order.map((_, k) => k), ticktext: order.map((client) => plain(brief(names[client]))), showgrid: false, zeroline: false, ticks: "", tickfont: { size: names.length > 30 ? 9 : 11 }, showticklabels: names.length <= 60 });
      const strip = groups.length ? 0.03 : 0;
      const row = facts.receivers.indexOf(state.client);
      return {
        height: Math.max(330, Math.min(760, width * 0.92)), hovermode: "closest",
        margin: { l: 10, r: 10, t: 30, b: 10 },
        xaxis: { ...ticks(facts.givers), domain: [strip + (strip && 0.008), 1], range: [-0.5, names.length - 0.5], side: "top", title: { text: "giver" }, tickangle: -90 },
        yaxis: { ...ticks(facts.receivers), domain: [0, 1 - strip - (strip && 0.008)], range: [names.length - 0.5, -0.5], title: { text: "receiver" }, anchor: strip ? "x2" : "x" },
        ...(strip ? {
          xaxis: { ...ticks(facts.givers), domain: [strip + 0.008, 1], range: [-0.5, names.length - 0.5], side: "top", title: { text: "giver" }, tickangle: -90, anchor: "y2" },
          xaxis2: { domain: [0, strip], range: [-0.5, 0.5], showticklabels: false, ticks: "", showgrid: false, zeroline: false },
          yaxis2: { domain: [1 - strip, 1], range: [-0.5, 0.5], showticklabels: false, ticks: "", showgrid: false, zeroline: false },
        } : {}),
        shapes: row < 0 ? [] : [{ type: "rect", x0: -0.5, x1: names.length - 0.5, y0: row - 0.5, y1: row + 0.5, line: { color: colour("ink"), width: 1.5 } }],
      };
    },
    data: () => {
      const cells = matrixOf(current.quantity, current.step);
      return { columns: ["round", "quantity", "receiver", "giver", "value"], rows: everyone.flatMap((r) => everyone.filter((g) => known(cells[r][g])).map((g) => [moments[current.step].round, current.quantity, names[r], names[g], cells[r][g]])) };
    },
  });
  chart.plot.tabIndex = 0;
  chart.plot.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) go(Math.max(0, Math.min(moments.length - 1, current.step + step)));
    if (move) selectClient(facts.receivers[Math.max(0, Math.min(names.length - 1, facts.receivers.indexOf(state.client) + move))]);
    if (step || move) event.preventDefault();
  });
  if (groups.length) made.append(el("ul", { class: "legend" }, groups.map((group) => {
    const chip = el("i");
    chip.style.background = groupColour(group);
    return el("li", {}, chip, `true group ${group}`);
  })));
  function heat() {
    const cells = matrixOf(current.quantity, current.step);
    const signed = current.quantity !== "weight";
    return {
      type: "heatmap", z: facts.receivers.map((r) => facts.givers.map((g) => (signed ? height(cells[r][g]) : cells[r][g]))), zmin: signed ? -1 : 0, zmax: 1,
      colorscale: signed ? diverging() : sequential(), xgap: names.length > 60 ? 0 : 1, ygap: names.length > 60 ? 0 : 1, hoverongaps: false,
      colorbar: { thickness: 10, len: 0.6, outlinewidth: 0, tickfont: { size: 11 }, ...(signed ? { tickvals: [-1, -0.5, 0, 0.5, 1], ticktext: [-1, -0.25, 0, 0.25, 1].map((part) => String(Number((part * limit()).toPrecision(2)))) } : { tickformat: ".0%" }) },
      ...(names.length > 200 ? { hoverinfo: "skip" } : { text: facts.receivers.map((r) => facts.givers.map((g) => (known(cells[r][g]) ? `${plain(names[r])} ← ${r === g ? "its own model" : plain(names[g])}: ${Number(cells[r][g].toPrecision(3))}` : ""))), hovertemplate: "%{text}<extra></extra>" }),
    };
  }
  /** Colours follow the square root, so that small help is seen beside great harm. */
  function height(value) {
    return known(value) ? Math.sign(value) * Math.sqrt(Math.min(1, Math.abs(value) / limit())) : null;
  }
  function margins() {
    const scale = groups.flatMap((group, k) => [[k / groups.length, groupColour(group)], [(k + 1) / groups.length, groupColour(group)]]);
    const common = { type: "heatmap", showscale: false, colorscale: scale, zmin: -0.5, zmax: groups.length - 0.5, hovertemplate: "%{text}<extra></extra>", ygap: 1, xgap: 1 };
    const index = (group) => groups.indexOf(group);
    const words = (client, target) => `${plain(names[client])}: ${target ? "aims at" : "holds"} group ${target ? facts.clients[client].target : facts.clients[client].group}`;
    return [
      { ...common, xaxis: "x2", yaxis: "y", x: [0], z: facts.receivers.map((c) => [index(facts.clients[c].target)]), text: facts.receivers.map((c) => [words(c, true)]) },
      { ...common, xaxis: "x", yaxis: "y2", y: [0], z: [facts.givers.map((c) => index(facts.clients[c].group))], text: [facts.givers.map((c) => words(c, false))] },
    ];
  }
  function go(step) {
    current.step = step;
    slider.value = step;
    refresh();
  }
  function refresh() {
    const round = moments[current.step].round;
    counter.textContent = `${round} of ${facts.rounds_planned}`;
    slider.setAttribute("aria-valuetext", `round ${round}`);
    explanation.textContent = QUANTITIES[current.quantity][1] + (facts.is_thinned ? " Of this long run, some rounds are left out here." : "");
    draw(chart);
    remember();
  }
  function start() {
    if (current.step === moments.length - 1) go(0);
    play.textContent = "❚❚ Pause";
    current.timer = setInterval(() => (current.step < moments.length - 1 ? go(current.step + 1) : stop()), 600);
  }
  function stop() {
    clearInterval(current.timer);
    current.timer = null;
    play.textContent = "▶ Play";
  }
  onClient(() => draw(chart));
  chart.clicked = (point) => (point.curveNumber < 2 ? facts.receivers[point.y] : null);
  refresh();
}
const brief = (name) => name.replace(/^client /, "");
