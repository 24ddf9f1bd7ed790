//! All controllers against the real API server in memory, on a clock that only passes when everyone is idle.

mod simulation;
