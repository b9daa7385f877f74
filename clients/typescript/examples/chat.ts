/** A conversation, line by line, with a model that has a chat template: node chat.js [host:port] */

import { createInterface } from "node:readline/promises";
import { type ChatMessage, InferenceClient, NoChatTemplateError } from "@metronome-llm/client";

const [address = "127.0.0.1:50052"] = process.argv.slice(2);

using client = new InferenceClient(address);
const lines = createInterface({ input: process.stdin, output: process.stdout, prompt: "> " });
const turns: ChatMessage[] = [];
lines.prompt();
for await (const content of lines) {
  turns.push({ role: "user", content });
  let answer = "";
  try {
    for await (const event of client.generate(turns, { maxTokens: 256 })) {
      if (event.kind === "delta") {
        process.stdout.write(event.text);
        answer += event.text;
      }
    }
  } catch (error) {
    if (!(error instanceof NoChatTemplateError)) {
      throw error;
    }
    console.error(error.message);
    process.exitCode = 1;
    break;
  }
  console.log();
  turns.push({ role: "assistant", content: answer });
  lines.prompt();
}
