/** Generates from a prompt and prints the answer as it comes: node generate.js "Once upon a time" [host:port] */

import { InferenceClient } from "@metronome-llm/client";

const [prompt = "Once upon a time", address = "127.0.0.1:50052"] = process.argv.slice(2);

using client = new InferenceClient(address);
for await (const event of client.generate(prompt, { maxTokens: 64, temperature: 0.8, seed: 7 })) {
  switch (event.kind) {
    case "waiting":
      console.error(`waiting: ${event.detail}`);
      break;
    case "delta":
      process.stdout.write(event.text);
      break;
    case "finished":
      console.log(`\n[${event.reason}, ${event.usage.numOutputTokens} tokens]`);
      break;
  }
}
