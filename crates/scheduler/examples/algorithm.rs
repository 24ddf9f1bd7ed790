//! The scheduling algorithm alone, built without the rest of the system; `kelson bench schedule --algorithm` does the same.
//!
//! `cargo run --release -p scheduler --example algorithm -- [nodes] [pods]`

fn main() {
    let mut args = std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let nodes = args.next().unwrap_or(5000);
    let pods = args.next().unwrap_or(2000);
    println!("{nodes} nodes, {pods} pods each");
    scheduler::bench::algorithm(nodes, pods, |measured| println!("{measured}"));
}
