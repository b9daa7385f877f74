/** The messages of `metronome.inference.v1`, generated from the contract. */

export * from "../gen/metronome/inference/v1/error_reason_pb.js";
export * from "../gen/metronome/inference/v1/inference_pb.js";
