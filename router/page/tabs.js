// Tabs that follow the keyboard: arrows, Home and End move between them. The address keeps the view.

export function setUpTabs(list, onShow) {
  const tabs = [...list.querySelectorAll('[role=tab]')];
  const panel = (tab) => document.getElementById(tab.getAttribute('aria-controls'));
  const name = (tab) => tab.id.replace('tab-', '');

  const select = (chosen, focus) => {
    for (const tab of tabs) {
      const on = tab === chosen;
      tab.setAttribute('aria-selected', String(on));
      tab.tabIndex = on ? 0 : -1;
      panel(tab).hidden = !on;
    }
    if (focus) chosen.focus();
    history.replaceState(null, '', `#${name(chosen)}`);
    onShow(name(chosen));
  };

  list.addEventListener('click', (event) => {
    const tab = event.target.closest('[role=tab]');
    if (tab) select(tab, false);
  });
  list.addEventListener('keydown', (event) => {
    const at = tabs.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    select(tabs[(to + tabs.length) % tabs.length], true);
  });
  select(tabs.find((tab) => `#${name(tab)}` === location.hash) ?? tabs[0], false);
}
