// The site's search runs in a worker, which a browser denies to pages that are opened from a folder: there it runs in a hidden frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.worker = this
      this.loaded = new Promise(done => this.frame.addEventListener("load", done))
      this.frame.srcdoc = `<script>
        postMessage = data => frameElement.worker.dispatchEvent(new MessageEvent("message", { data }))
      </script><script src="${url}"></script>`
      document.body.append(this.frame)
    }
    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
