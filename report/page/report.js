// Draws the page of `zerorun report` from the JSON in it (report/report_data.h). Texts of a run become text
// nodes only, never markup.
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const page = document.getElementById('page');
  const several = data.runs.length > 1;
  const graphs = [];

  // make('p', {class: 'quiet'}, 'text', element, ...)
  function make(name, attributes, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  // A key, which may be broken behind a dot or an underscore.
  const key = (text) => make('code', {}, ...text.split(/(?<=[._])/).flatMap((part) => [part, document.createElement('wbr')]));

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
  const plural = (count, one, more) => count.toLocaleString('en') + ' ' + (count === 1 ? one : more);

  // A number in at most `digits` digits; 12,345 and 1.2e-5 where that is shorter to read.
  function number(value, digits = 6) {
    if (typeof value === 'string') return value === 'nan' ? 'NaN' : value.replace('inf', 'infinite');
    if (value === 0) return '0';
    const size = Math.abs(value);
    if (size >= 1e12 || size < 1e-4) return value.toExponential(Math.max(0, digits - 3)).replace(/\.?0+e/, 'e').replace('e+', 'e');
    return Number(value.toPrecision(digits)).toLocaleString('en', {maximumFractionDigits: 10});
  }

  function onAxis(value) {
    const size = Math.abs(value);
    for (const [unit, name] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e4, 'k']]) {
      if (size >= unit) return number(value / (name === 'k' ? 1e3 : unit), 4) + ' ' + name;
    }
    return number(value, 4);
  }

  function section(id, title) {
    const element = make('section', {id}, make('h2', {}, title));
    page.append(element);
    links.append(make('a', {href: '#' + id}, title));
    return element;
  }

  // A table that is made when it is first opened. `rows`: a function.
  function tableBeside(title, head, rows) {
    const box = make('div', {class: 'scroll', tabindex: '0'});
    const details = make('details', {}, make('summary', {}, title), box);
    details.addEventListener('toggle', () => {
      if (box.firstChild) return;
      const all = rows();
      const isNumber = head.map((name, place) => all.some((row) => typeof row[place] === 'number'));
      const cells = (kind, row) => row.map((cell, place) =>
        make(kind, isNumber[place] ? {class: 'number'} : {}, typeof cell === 'number' ? number(cell, 7) : cell));
      box.append(make('table', {}, make('thead', {}, make('tr', {}, ...cells('th', head))),
                      make('tbody', {}, ...all.map((row) => make('tr', {}, ...cells('td', row))))));
    });
    return details;
  }

  // ---- marks: steps at which something happened, lines in every figure

  const kMarks = {
    skipped: ['skipped step', 'skipped steps', [4, 3]],
    restarted: ['restart', 'restarts', [1, 3]],
    failed: ['failure', 'failures', null],
    part: ['first step at which the runs part', '', null],
  };
  const marks = data.runs.flatMap((run) => run.marks);
  if (data.comparison && data.comparison.step) marks.push({kind: 'part', count: 1, steps: [data.comparison.step]});
  const marksAt = new Map();
  for (const mark of marks) {
    for (const step of mark.steps) {
      const text = mark.kind === 'part' ? 'part' : mark.kind + (several ? ' (' + mark.run + ')' : '');
      marksAt.set(step, marksAt.has(step) ? marksAt.get(step) + ', ' + text : text);
    }
  }

  function keyOfMarks() {
    const list = make('ul', {class: 'key'});
    for (const mark of marks) {
      const [one, more] = kMarks[mark.kind];
      const text = mark.kind === 'part' ? one + ': ' + number(mark.steps[0])
        : plural(mark.count, one, more) + (several ? ' of ' + mark.run : '') +
          (mark.count <= 5 ? ': ' + mark.steps.map((step) => number(step)).join(', ') : '');
      list.append(make('li', {}, make('span', {class: 'line', style: `border-color: var(--${mark.kind}); border-left-style: ` +
        (kMarks[mark.kind][2] ? 'dashed' : 'solid')}), text));
    }
    return list;
  }

  function drawLine(context, area, x, name, pattern) {
    context.save();
    context.strokeStyle = colour(name);
    context.setLineDash(pattern || []);
    context.beginPath();
    context.moveTo(x, area.y);
    context.lineTo(x, area.y + area.h);
    context.stroke();
    context.restore();
  }

  const skipped = data.runs.map((run) => new Set(run.marks.filter((mark) => mark.kind === 'skipped').flatMap((mark) => mark.steps)));
  // Of the run whose curve is the one at this place.
  const skippedOf = (figure, place) => several && figure.labels[1] === 'B' ? skipped[place] : skipped[0];

  // ---- figures with curves

  const kSeries = {parameters: 0, gradients: 1, master: 5, moments: 2, buckets: 3, buffers: 6, gathered: 4, 'on host': 7, all: 0,
    formula: 6};
  const kPatterns = {formula: [6, 4], B: [7, 3]};
  // Kinds of collectives have the colours after that of their sum.
  const seriesColours = (figure) => {
    const first = figure.id.startsWith('sent') ? 1 : 0;
    return figure.labels.map((label, place) => colour('c' + (kSeries[label] ?? (place + first) % 8)));
  };

  function legend(figure, shown) {
    const fragment = document.createDocumentFragment();
    shown.series.forEach((series) => {
      const kind = figure.stacked ? 'swatch block' : kPatterns[series.label] ? 'swatch dashed' : 'swatch';
      const swatch = make('span', {class: kind, style: 'color: ' + series.color});
      const value = series.yHTML === undefined ? '' : ' ' + series.yHTML;
      fragment.append(make('span', {}, swatch, series.label, make('b', {}, value)));
    });
    fragment.append(make('span', {class: 'quiet'}, shown.x === undefined ? '' : 'step ' + number(shown.x, 12)));
    return fragment;
  }

  function curves(figure) {
    // The norm of a skipped step is infinite, which its own mark says.
    const isOddity = (step, value, place) => typeof value === 'string' && !skippedOf(figure, place).has(step);
    const notFinite = figure.rows.filter(([step, ...values]) => values.some((value, place) => isOddity(step, value, place)));
    const rows = figure.rows.map((row) => row.map((value) => typeof value === 'string' ? NaN : value));
    const labels = make('div', {class: 'legend'});
    const graph = make('div', {class: 'graph', role: 'img', 'aria-label': figure.title + ' by step; the table below has the numbers'});
    const head = make('div', {class: 'head'}, make('h3', {}, figure.title));
    const caption = make('figcaption', {}, figure.about);
    if (notFinite.length) {
      caption.append(' ', make('span', {style: 'color: var(--failed)'}, '▲'), ' infinite or NaN: ',
                     notFinite.length > 5 ? plural(notFinite.length, 'point', 'points')
                       : 'step ' + notFinite.map((row) => number(row[0])).join(', '), '.');
    }
    const points = plural(figure.rows.length, 'point', 'points') +
      (figure.rows.length < figure.steps ? ' of ' + plural(figure.steps, 'step', 'steps') + ', with the extremes' : '');
    const table = tableBeside('Table: ' + points, ['step', ...figure.labels, ...(marks.length ? ['mark'] : [])], () => figure.rows.map((row) =>
      [...row.map((value) => value === null ? '' : typeof value === 'string' ? number(value) : value),
       ...(marks.length ? [marksAt.get(row[0]) || ''] : [])]));
    const element = make('figure', {id: 'figure-' + figure.id.replace(/ /g, '-')}, head, labels, graph, caption, table);
    return {figure, element, labels, graph, head, rows, notFinite};
  }

  function draw({figure, labels, graph, head, rows, notFinite}) {
    const themed = () => ({colors: seriesColours(figure), gridLineColor: colour('line'), axisLineColor: colour('line')});
    const dygraph = new Dygraph(graph, rows, {
      ...themed(),
      labels: ['step', ...figure.labels],
      labelsDiv: labels,
      legend: 'always',
      legendFormatter: (shown) => legend(figure, shown),
      stackedGraph: figure.stacked,
      stepPlot: figure.id === 'scale',
      fillAlpha: 0.55,
      includeZero: figure.stacked || ['speed', 'tokens'].includes(figure.id) || figure.id.startsWith('sent'),
      connectSeparatedPoints: true,
      drawPoints: rows.length < 3,
      pointSize: 3,
      strokeWidth: 1.6,
      series: Object.fromEntries(figure.labels.filter((label) => kPatterns[label])
        .map((label) => [label, {strokePattern: kPatterns[label]}])),
      highlightCircleSize: 3,
      axisLabelFontSize: 12,
      xRangePad: 6,
      yRangePad: 6,
      axes: {
        x: {axisLabelFormatter: (value) => Number.isInteger(value) ? number(value, 12) : '', valueFormatter: (value) => value,
          pixelsPerLabel: 72, axisLabelWidth: 70},
        y: {axisLabelFormatter: onAxis, valueFormatter: (value) => number(value, Number.isInteger(value) ? 15 : 6), axisLabelWidth: 62, pixelsPerLabel: 34},
      },
      underlayCallback: (context, area, me) => {
        for (const mark of marks) {
          for (const step of mark.steps) drawLine(context, area, me.toDomXCoord(step), mark.kind, kMarks[mark.kind][2]);
        }
        context.fillStyle = colour('failed');
        for (const [step] of notFinite) {
          const x = me.toDomXCoord(step), y = area.y + area.h;
          context.beginPath();
          context.moveTo(x - 5, y);
          context.lineTo(x + 5, y);
          context.lineTo(x, y - 9);
          context.fill();
        }
      },
    });
    if (['loss', 'norm', 'tokens', 'speed', 'seconds'].includes(figure.id)) {
      const box = make('input', {type: 'checkbox'});
      box.addEventListener('change', () => dygraph.updateOptions({logscale: box.checked}));
      head.append(make('label', {}, box, 'log scale'));
    }
    graphs.push({dygraph, themed});
  }

  function figures(parent, chosen, before = []) {
    const made = chosen.map(curves);
    parent.append(make('div', {class: 'figures'}, ...before, ...made.map((one) => one.element)));
    made.forEach(draw);
  }
  const figuresOf = (...ids) => data.figures.filter((figure) => ids.includes(figure.id.split(' ')[0]));

  // ---- bars of model states

  const kParts = ['parameters', 'gradients', 'optimizer states', 'the rest'];
  const kPartColours = ['c0', 'c1', 'c2', 'c6'];

  function bars(run) {
    const sum = (bar) => bar.values.reduce((all, value) => all + value, 0);
    const most = Math.max(...run.bars.map(sum), 1e-9);
    const element = make('figure', {}, make('div', {class: 'head'},
      make('h3', {}, 'Model states on a rank, in MiB' + (several ? ', ' + run.name : ''))));
    element.append(make('div', {class: 'legend'}, ...kParts.map((part, place) =>
      make('span', {}, make('span', {class: 'swatch block', style: `color: var(--${kPartColours[place]})`}), part))));
    for (const bar of run.bars) {
      const track = make('div', {class: 'track'}, ...bar.values.map((value, place) =>
        make('span', {style: `width: ${100 * value / most}%; background: var(--${kPartColours[place]})`})));
      element.append(make('div', {class: bar.own ? 'bar own' : 'bar'}, make('span', {}, bar.label), track,
                          make('span', {class: 'value'}, number(sum(bar), 4))));
    }
    element.append(make('figcaption', {}, 'Measured on rank 0 at the step with the most, beside the formula of the ZeRO paper for ' +
      'each stage on as many ranks, ' +
      'with the bytes that a parameter has in this run. The rest: buckets, buffers and gathered parameters. Bold: this run and its stage.' +
      (run.shares_parameters ? ' The ranks share one copy of the parameters in their host\'s memory, so stages 1 and 2 divide ' +
        'these too.' : '')));
    element.append(tableBeside('Table: ' + run.bars.length + ' bars', ['', ...kParts],
                               () => run.bars.map((bar) => [bar.label, ...bar.values])));
    return element;
  }

  // ---- what ranks did in one step

  const kSpanColours = {forward: 0, backward: 1, step: 2, 'wait for reductions': 6, norm: 5, update: 3, 'update a shard': 3};
  const spanColour = (name) => 'c' + (name.startsWith('wait') ? 6 : kSpanColours[name] ?? (/all|reduce|broadcast|send|receive/.test(name) ? 4 : 7));

  function lane(track, length) {
    const rows = 1 + Math.max(...track.spans.map(([row]) => row));
    return make('div', {class: 'lane', style: `height: ${15 * rows}px`}, ...track.spans.map(([row, name, from, to]) =>
      make('span', {title: `${name}, ${number(to - from, 3)} ms`, style: `top: ${15 * row}px; left: ${100 * from / length}%; ` +
        `width: ${100 * (to - from) / length}%; background: var(--${spanColour(name)})`})));
  }

  function stepTimeline(run) {
    const {step, ms, of, ranks} = run.step;
    const names = [...new Set(ranks.flatMap((rank) => rank.tracks.flatMap((track) => track.spans.map((span) => span[1]))))];
    const element = make('figure', {id: 'figure-step' + (several ? '-' + run.name : '')}, make('div', {class: 'head'},
      make('h3', {}, `Step ${number(step)}${several ? ' of ' + run.name : ''}, ${number(ms, 4)} ms from left to right`)));
    const colours = [...new Set(names.map(spanColour))];
    element.append(make('div', {class: 'legend wide'}, ...colours.map((one) => make('span', {},
      make('span', {class: 'swatch block', style: `color: var(--${one})`}), names.filter((name) => spanColour(name) === one).join(', ')))));
    for (const {rank, tracks} of ranks) {
      element.append(make('h4', {}, 'Rank ' + rank), ...tracks.map((track) => make('div', {class: 'track-row'}, make('span', {}, track.name),
                                                                           lane(track, ms))));
    }
    element.append(make('figcaption', {}, 'The last step of the timeline that the run has recorded' +
      (ranks.length < of ? `, on ${ranks.length} of ${of} ranks` : '') + '. The engine\'s phases lie above what they consist of; a collective ' +
      'lasts from its start until its rank has seen its end. All events are in the timeline itself, for Perfetto.'));
    const rows = () => ranks.flatMap(({rank, tracks}) => tracks.flatMap((track) => track.spans.map(([, name, from, to]) =>
      [String(rank), track.name, name, from, to - from])));
    element.append(tableBeside('Table: ' + plural(rows().length, 'span', 'spans'), ['rank', 'track', 'what', 'from, ms', 'for, ms'], rows));
    return element;
  }

  // ---- tables of facts

  const runNames = () => make('thead', {}, make('tr', {}, make('th', {}), ...data.runs.map((run) => make('th', {}, run.name))));

  function facts(rows) {
    const table = make('table', {class: several ? 'facts wide' : 'facts'});
    if (several) table.append(runNames());
    table.append(make('tbody', {}, ...rows.map(([label, ...texts]) =>
      make('tr', {}, make('th', {scope: 'row'}, label), ...texts.map((text) => make('td', {}, text))))));
    return table;
  }

  function configuration(rows) {
    const cell = (setting) => setting === null ? make('td', {class: 'quiet'}, 'not set')
      : make('td', {}, make('code', {}, setting.value), make('span', {class: 'from'}, setting.from));
    const table = make('table', {class: 'facts wide'});
    if (several) table.append(runNames());
    table.append(make('tbody', {}, ...rows.map(([name, ...settings]) =>
      make('tr', {}, make('th', {scope: 'row'}, key(name)), ...settings.map(cell)))));
    return table;
  }

  function addConfiguration() {
    const parent = section('configuration', 'Configuration');
    const value = (setting) => setting && setting.value;
    const differs = ([, first, ...others]) => others.some((other) => value(other) !== value(first));
    const isDefault = ([, ...settings]) => settings.every((setting) => setting && setting.from === 'default');
    const rows = data.configuration;
    if (several) {
      const different = rows.filter(differs);
      parent.append(make('p', {}, different.length ? 'Settings that differ:' : 'All settings are equal.'));
      if (different.length) parent.append(configuration(different));
    }
    const rest = rows.filter((row) => !several || !differs(row));
    const given = rest.filter((row) => !isDefault(row)), defaults = rest.filter(isDefault);
    const folded = (title, list) => make('details', {}, make('summary', {}, title), configuration(list));
    if (!several) {
      parent.append(make('p', {class: 'quiet small'}, 'What ds_config.json and the program set, and where; below it the defaults.'));
      parent.append(configuration(given));
    } else if (given.length) {
      parent.append(folded(plural(given.length, 'setting', 'settings') + ' that are equal', given));
    }
    if (defaults.length) parent.append(folded(plural(defaults.length, 'default', 'defaults'), defaults));
  }

  function addEvents() {
    const parent = section('events', 'What happened');
    const notes = data.runs.flatMap((run) => run.notes.map((note) => (several ? run.name + ': ' : '') + note));
    const events = data.runs.flatMap((run) => run.events);
    const failures = events.filter((event) => event[3] === 'failure').length;
    const skipped = marks.filter((mark) => mark.kind === 'skipped').reduce((all, mark) => all + mark.count, 0);
    parent.append(make('p', {}, (failures ? plural(failures, 'failure', 'failures') : 'No failure is recorded') + ', ' +
                       (skipped ? plural(skipped, 'skipped step', 'skipped steps') : 'no skipped step') + '.'));
    if (notes.length) parent.append(make('ul', {}, ...notes.map((note) => make('li', {}, note))));
    if (!events.length) return;
    const when = (step, what) => what === 'start' ? 'before step ' + number(step + 1) : 'after step ' + number(step);
    const row = ([run, time, step, what, text]) => make('tr', what === 'failure' ? {class: 'failure'} : {},
      ...(several ? [run] : []).concat([time.replace('T', ' ').replace('Z', ' UTC'), when(step, what), what + (text ? ': ' + text : '')])
        .map((cell) => make('td', {}, cell)));
    parent.append(make('div', events.length > 12 ? {class: 'scroll', tabindex: '0'} : {},
                       make('table', {class: 'events'}, make('tbody', {}, ...events.map(row)))));
  }

  function addComparison() {
    const parent = section('comparison', 'Where they part');
    const {text, refusal, step, before} = data.comparison;
    const verdict = refusal ? 'They cannot be compared.' : !step ? 'No difference in the steps that both have.'
      : before ? `They differ before step ${number(step)}.` : `They part at step ${number(step)}.`;
    parent.append(make('p', {class: 'verdict'}, verdict));
    parent.append(make('pre', {}, (refusal || text).trimEnd()));
    if (!refusal) parent.append(make('p', {class: 'quiet small'}, 'As zerorun diff says it.'));
  }

  // ---- the page

  const names = data.runs.map((run) => several ? run.name + ': ' + run.folder : run.folder);
  document.title = 'Run report: ' + data.runs.map((run) => run.folder).join(', ');
  const links = make('nav', {'aria-label': 'on this page'});
  page.append(make('header', {}, make('h1', {}, 'Run report'), ...names.map((name) => make('p', {class: 'quiet'}, name)), links));

  if (data.comparison) addComparison();
  section('results', 'At a glance').append(facts(data.results));
  addEvents();
  if (data.figures.length) {
    const training = section('training', 'Training');
    training.append(make('p', {class: 'quiet small'}, 'All figures are over optimizer steps. Drag across one to zoom all of them, ' +
      'double-click to zoom out. Point at a curve to read its values.'));
    if (marks.length) training.append(keyOfMarks());
    if (!figuresOf('loss').length)
      training.append(make('p', {}, 'There is no loss in the log: the program calls loss.backward() itself. ' +
        'It may call engine.backward(loss) instead.'));
    figures(training, figuresOf('loss', 'norm', 'lr', 'scale'));
    figures(section('speed', 'Speed'), figuresOf('tokens', 'speed', 'seconds'));
    figures(section('memory', 'Memory'), figuresOf('memory'), data.runs.filter((run) => run.bars.length).map(bars));
    if (figuresOf('sent').length) figures(section('sent', 'Communication'), figuresOf('sent'));
    const recorded = data.runs.filter((run) => run.step);
    if (recorded.length) section('step', 'A step').append(...recorded.map(stepTimeline));
    Dygraph.synchronize(graphs.map((one) => one.dygraph), {selection: true, zoom: true, range: false});
  } else {
    page.append(make('p', {}, 'There are no steps in the log yet.'));
  }
  section('job', 'Ranks and hosts').append(facts(data.job));
  addConfiguration();
  const parameters = section('parameters', 'Parameters');
  const sameModel = several && JSON.stringify(data.runs[0].parameters) === JSON.stringify(data.runs[1].parameters);
  for (const run of sameModel ? data.runs.slice(0, 1) : data.runs) {
    parameters.append(tableBeside(plural(run.parameters.length, 'tensor', 'tensors') + (several && !sameModel ? ' of ' + run.name : ''),
      ['elements', 'shape', 'trained', 'name'], () => run.parameters.map(([name, shape, elements, trained]) =>
        [elements, shape.join(' × ') || 'one number', trained ? 'yes' : 'no', name])));
  }
  page.append(make('footer', {}, 'Written by zerorun report on ' + data.written.replace('T', ' ').replace('Z', ' UTC') + '. Figures are drawn by dygraphs.', make('details', {},
    make('summary', {}, 'Licence of dygraphs'), make('pre', {}, document.getElementById('licence').textContent.trim()))));

  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    for (const {dygraph, themed} of graphs) dygraph.updateOptions(themed());
  });
})();
