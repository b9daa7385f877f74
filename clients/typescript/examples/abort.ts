/** Stops an answer from outside, here once it has some length: node abort.js [host:port] */

import { InferenceClient } from "@metronome-llm/client";

const [address = "127.0.0.1:50052"] = process.argv.slice(2);

using client = new InferenceClient(address);
const abort = new AbortController();
const enough = new Error("that is enough");
let length = 0;
try {
  for await (const event of client.generate("Once upon a time", { ignoreEos: true, signal: abort.signal })) {
    if (event.kind === "delta") {
      process.stdout.write(event.text);
      length += event.tokenIds.length;
      if (length >= 16) {
        abort.abort(enough); // the executor frees the request's memory within two passes
      }
    }
  }
} catch (error) {
  if (error !== enough) {
    throw error;
  }
  console.log(`\n[left after ${length} tokens]`);
}
