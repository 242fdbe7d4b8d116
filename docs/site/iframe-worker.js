// A browser starts no Worker from a file; the theme's search runs in a hidden frame there.
if (location.protocol === "file:") {
  // the theme finds its files by this name of it
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      this.ready = new Promise((done) => this.frame.addEventListener("load", done, { once: true }));
      this.heard = (event) => {
        if (event.source !== inside) return;
        event.stopImmediatePropagation();
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      };
      addEventListener("message", this.heard);
      const load = "importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {" +
        "const s = document.createElement('script'); s.src = url; s.onload = done; s.onerror = failed;" +
        "document.body.appendChild(s); })), Promise.resolve());";
      inside.document.open();
      inside.document.write("<body><script>postMessage = (data) => parent.postMessage(data, '*');" + load +
        "<\/script><script src='" + url + "'><\/script></body>");
      inside.document.close();
    }
    postMessage(data) {
      const inside = this.frame.contentWindow;  // whose own postMessage answers
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
      removeEventListener("message", this.heard);
    }
  };
}
