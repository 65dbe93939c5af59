// Search of a site that is opened from the file system: Material's runs in a worker, and a page from a file may start
// none. Here the worker's script runs in a hidden frame of the page instead. MkDocs' offline plugin would load such a
// script from a server of others; it leaves that out where a script of this name is listed.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      const page = this.scope.document;
      page.open();
      page.write("<!doctype html><body></body>");
      page.close();
      this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = page.createElement("script");
      this.loaded = new Promise((done) => (script.onload = done));
      script.src = new URL(url, location.href).href;
      page.body.append(script);
    }

    async postMessage(data) {
      await this.loaded;
      this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data }));
    }
  };
