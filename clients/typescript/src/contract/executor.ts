/** The messages of `metronome.executor.v1`, generated from the contract. */

export * from "../gen/metronome/executor/v1/executor_pb.js";
