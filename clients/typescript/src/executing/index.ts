/**
 * For executors of your own: what every one of them does by the contract, whatever computes its tokens.
 *
 *     wanted.ts    what is looked at before a request is taken
 *     request.ts   a request: its row of the books, and the stream that its tokens go to
 *     books.ts     the books: told to a scheduler, and moved by its plans
 *     plans.ts     whether a plan can be carried out, and what to run without one
 *
 * Each can be used without the others. docs/bring-your-own.md walks through an executor that uses them all.
 */

export { Books, type Work } from "./books.js";
export { planFault, safePlan } from "./plans.js";
export { Request } from "./request.js";
export { type Check, checked, knownTokens, type Wanted } from "./wanted.js";
