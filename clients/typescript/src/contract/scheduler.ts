/** The messages of `metronome.scheduler.v1`, generated from the contract. */

export * from "../gen/metronome/scheduler/v1/error_reason_pb.js";
export * from "../gen/metronome/scheduler/v1/plan_pb.js";
export * from "../gen/metronome/scheduler/v1/policy_pb.js";
export * from "../gen/metronome/scheduler/v1/record_pb.js";
export * from "../gen/metronome/scheduler/v1/scheduler_pb.js";
export * from "../gen/metronome/scheduler/v1/state_pb.js";
