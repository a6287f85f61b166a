// What a request asks for besides its messages, from the form beside the conversation.
import { selections, useKey } from '/page/api.js';
import { byId, element } from '/page/dom.js';

// Parts of the context in a trace: what the strip shows side by side.
export const TRACE_PARTS = 256;

export class Settings {
  constructor() {
    this.form = byId('settings');
    this.presets = [];
    this.server = null;
    this.form.elements.key.addEventListener('input', (event) => useKey(event.target.value));
    this.form.elements.selection.addEventListener('change', () => this.describe());
    this.form.addEventListener('submit', (event) => event.preventDefault());
  }

  // What the server offers, into its selects. Throws ApiError.
  async load(comparisons) {
    this.server = await selections();
    this.presets = this.server.presets;
    const served = this.presets.filter((preset) => preset.refused === null);
    const option = (preset) => {
      const made = element('option', '', preset.preset);
      made.value = preset.preset;
      return made;
    };
    const own = element('option', '', `the server's (${this.server.default})`);
    own.value = '';
    this.form.elements.selection.replaceChildren(own, ...served.map(option));
    this.form.elements.budget.max = this.server.max_budget;
    this.form.elements.budget.placeholder = `up to ${this.server.max_budget}`;
    const wanted = ['dense', 'winnow', 'async-token'];
    comparisons.forEach((select, i) => {
      select.replaceChildren(...served.map(option));
      if (served.some((preset) => preset.preset === wanted[i])) select.value = wanted[i];
    });
    this.describe();
  }

  describe() {
    const chosen = this.presets.find((preset) => preset.preset === this.form.elements.selection.value);
    byId('selection-note').textContent = chosen?.description ?? '';
  }

  // The fields of a request. `changes.selection` wins over the form's.
  request(changes = {}) {
    const fields = this.form.elements;
    const number = (field) => (fields[field].value === '' ? undefined : Number(fields[field].value));
    const winnow = {};
    const selection = changes.selection ?? fields.selection.value;
    if (selection) winnow.selection = selection;
    // A budget would make a preset without one select.
    if (selection !== 'dense') {
      if (number('budget') !== undefined) winnow.budget = number('budget');
      if (number('min_captured_mass') !== undefined) winnow.min_captured_mass = number('min_captured_mass');
    }
    if (fields.trace.checked) winnow.trace = TRACE_PARTS;
    return {
      temperature: changes.temperature ?? number('temperature'),
      max_tokens: number('max_tokens'),
      winnow,
    };
  }

  system() {
    const text = this.form.elements.system.value.trim();
    return text ? [{ role: 'system', content: text }] : [];
  }
}
