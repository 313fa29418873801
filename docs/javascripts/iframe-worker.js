// Browsers start no workers on file://, and the search of the site is one: there a hidden frame runs it instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (message) => {
        const data = structuredClone(message); // as a worker's: neither side sees what the other changes
        setTimeout(() => this.onmessage?.({ data }));
      };
      this.ready = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = new URL(url, location.href).href;
        script.onload = () => resolve(inside);
        script.onerror = reject;
        inside.document.head.append(script);
      });
      this.ready.catch((error) => this.onerror?.(error));
    }
    postMessage(message) {
      const data = structuredClone(message);
      this.ready.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })), () => {});
    }
    terminate() {
      this.frame.remove();
    }
  };
}
