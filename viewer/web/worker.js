// A web worker of the viewer: gets the compiled program first, then one task after the other.
import init, { work } from "./viewer.js";

let ready;
onmessage = async ({ data }) => {
    if (data instanceof WebAssembly.Module) {
        ready = init({ module_or_path: data });
        return;
    }
    await ready;
    const bytes = work(data);
    postMessage(bytes, [bytes.buffer]);
};
