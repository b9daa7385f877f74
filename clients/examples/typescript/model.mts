/** The model, which is arithmetic: put yours here. A token is a byte, and the next one is a letter that all before it decide. */

/** Sizes, as the scheduler is told them. */
export const LIMITS = {
  maxNumBatchedTokens: 64,
  maxNumSeqs: 8,
  blockSize: 16,
  numBlocks: 32,
  numSwapBlocks: 8,
  maxModelLen: 480,
  maxNumWaiting: 16,
};

export const VOCAB_SIZE = 256;

/** The letter that the tokens before it decide, and the seed where there is chance. */
export function nextToken(tokens: readonly number[], seed: bigint): number {
  return 97 + (tokens.reduce((hash, token) => (hash * 31 + token) % 1_000_003, Number(BigInt.asUintN(32, seed))) % 26);
}

export function tokensOf(text: string): number[] {
  return [...Buffer.from(text)];
}

export function textOf(tokens: readonly number[]): string {
  return Buffer.from(tokens).toString();
}
