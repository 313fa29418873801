// What the theme leaves out for keyboards and screen readers.
const mend = () => {
  for (const cell of document.querySelectorAll("th:empty")) cell.role = "presentation"; // the corner of a table
  for (const bar of document.querySelectorAll(".md-code__nav")) bar.role = "none"; // "Copy" is no landmark
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap, pre > code")) {
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0; // arrow keys scroll what has the focus
    else wide.removeAttribute("tabindex");
  }
};
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", mend);
mend();
