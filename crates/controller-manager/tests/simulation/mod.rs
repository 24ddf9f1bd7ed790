//! Seeded runs of a whole cluster in which everything goes wrong that can: see `faults`.
//!
//! ```text
//! scenario (what users do) ──► API server ◄── faults ── all controllers
//!                                  ▲
//!          actors (scheduler and kubelets), invariants (after each change of a pod)
//! ```
//!
//! After the faults end everything must converge and then stay quiet. The seed decides faults and delays; what it cannot
//! decide are the random names and the order in which tasks that are ready at the same instant run, so a seed that fails
//! once may need a few runs to fail again. `SIMULATION_SEEDS=100` runs more of them, `SIMULATION_SEED=7` one of them,
//! `SIMULATION_LOG=debug` tells what the controllers do.

mod actors;
mod cluster;
mod faults;
mod invariants;
mod random;
mod scenario;
mod undo;

/// How many seeds are run unless the environment says otherwise.
const SEEDS: u64 = 2;

fn seeds() -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match (number("SIMULATION_SEED"), number("SIMULATION_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, count) => (1..=count.unwrap_or(SEEDS)).collect(),
    }
}

#[test]
fn everything_converges_and_stays_quiet_whatever_goes_wrong() {
    if let Ok(filter) = std::env::var("SIMULATION_LOG") {
        telemetry::log_to_stderr(&filter);
    }
    for seed in seeds() {
        // One thread and a stopped clock: time passes only when nobody has anything to do.
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        if let Err(why) = runtime.block_on(scenario::run(seed)) {
            panic!("seed {seed}: {why}\nrun it again with SIMULATION_SEED={seed}");
        }
    }
}

#[test]
fn nobody_spins_whose_writes_are_undone_at_once() {
    if let Ok(filter) = std::env::var("SIMULATION_LOG") {
        telemetry::log_to_stderr(&filter);
    }
    for seed in seeds() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        if let Err(why) = runtime.block_on(scenario::adversary(seed)) {
            panic!("seed {seed}: {why}\nrun it again with SIMULATION_SEED={seed}");
        }
    }
}
