// Making and finding elements. Text is set as text, never as markup.

export const byId = (id) => document.getElementById(id);

// element('p', 'note', 'text', child, …)
export function element(tag, className = '', ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function show(made, visible) {
  made.hidden = !visible;
}
