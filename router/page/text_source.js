// The text that goes before the first question: pasted, dropped or opened.
import { tokenize } from '/page/api.js';
import { byId } from '/page/dom.js';
import { bytes, count } from '/page/format.js';

const MAX_BYTES = 12 << 20; // a request's body may have 16 MiB, and JSON needs room for escapes

export class TextSource {
  constructor() {
    this.area = byId('text');
    this.note = byId('text-size');
    this.timer = null;
    this.area.addEventListener('input', () => this.changed());
    byId('file').addEventListener('change', (event) => {
      if (event.target.files[0]) this.read(event.target.files[0]);
      event.target.value = '';
    });
    const drop = byId('drop');
    drop.addEventListener('dragover', (event) => {
      event.preventDefault();
      drop.classList.add('over');
    });
    drop.addEventListener('dragleave', () => drop.classList.remove('over'));
    drop.addEventListener('drop', (event) => {
      drop.classList.remove('over');
      const file = event.dataTransfer.files[0];
      if (!file) return; // dragged text goes where the area puts it
      event.preventDefault();
      this.read(file);
    });
  }

  get value() {
    return this.area.value.trim();
  }

  set value(text) {
    this.area.value = text;
    this.changed();
  }

  async read(file) {
    if (file.size > MAX_BYTES) {
      this.note.textContent = `${file.name} has ${bytes(file.size)}; at most ${bytes(MAX_BYTES)} can be sent.`;
      return;
    }
    const text = await file.text();
    if (text.includes('\0')) {
      this.note.textContent = `${file.name} is not a text.`;
      return;
    }
    this.value = text;
  }

  changed() {
    clearTimeout(this.timer);
    const text = this.value;
    if (!text) {
      this.note.textContent = 'It goes before your first question.';
      return;
    }
    this.note.textContent = `${count(text.length)} characters`;
    this.timer = setTimeout(async () => {
      const tokens = await tokenize([{ role: 'user', content: text }]).catch(() => null);
      if (tokens && text === this.value) {
        this.note.textContent = `${count(text.length)} characters, ${count(tokens.length)} tokens`;
      }
    }, 400);
  }
}
