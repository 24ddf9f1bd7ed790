use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: KubeletArgs,
}

fn args(line: &[&str]) -> Result<KubeletArgs, String> {
    let line = std::iter::once("kubelet").chain(line.iter().copied());
    Line::try_parse_from(line).map(|line| line.args).map_err(|error| error.to_string())
}

/// Every flag that upstream's program has, each with a value that it takes there.
#[test]
fn every_flag_of_upstream_is_taken_or_refused_with_a_sentence() {
    for line in include_str!("flags.txt").lines() {
        let (flag, refusal) = line.split_once(" ! ").map_or((line, None), |(flag, why)| (flag, Some(why)));
        let loaded =
            args(&[flag]).and_then(|args| args.load().map_err(|error| telemetry::chain(&error).to_string()));
        match (loaded, refusal) {
            (Ok(_), None) => {}
            (Err(said), Some(why)) => assert!(said.contains(why), "{flag}: {said}"),
            (Ok(_), Some(_)) => panic!("{flag} is taken, though the table says that it is refused"),
            (Err(said), None) => panic!("{flag}: {said}"),
        }
    }
}

#[test]
fn every_flag_of_a_field_is_in_upstreams_list() {
    let known = include_str!("flags.txt");
    for field in fields::FIELDS.iter().filter(|field| !field.flag.is_empty()) {
        let start = format!("--{}=", field.flag);
        assert!(known.lines().any(|line| line.starts_with(&start)), "{}", field.flag);
    }
}

#[test]
fn lists_are_read() {
    let read = labels(&["a=b".into(), "c=".into(), "d".into(), String::new()]);
    assert_eq!((read.len(), &*read["a"], &*read["c"], &*read["d"]), (3, "b", "", ""));
    assert_eq!(args(&["--node-ip="]).unwrap().node_ip, [None]);
    assert!(args(&["--node-ip=here"]).is_err());
    // As a unit has them when a machine has no taints.
    let none = args(&["--register-with-taints=", "--node-labels="]).unwrap();
    assert_eq!(none.configuration.0["registerWithTaints"], serde_json::json!([]));
}

#[test]
fn the_own_address_is_that_of_the_route() {
    assert_eq!(own_address("https://127.0.0.1:6443").unwrap(), IpAddr::from([127, 0, 0, 1]));
}

#[test]
fn swap_is_seen() {
    assert_eq!(swap_device("Filename Type Size Used Priority\n"), None);
    assert_eq!(swap_device("Filename Type\n/dev/sda2 partition 1 0 -2\n").as_deref(), Some("/dev/sda2"));
}

#[test]
fn thresholds_stand_alone_unless_they_are_merged() {
    let read = |text: serde_json::Value| eviction_settings(&serde_json::from_value(text).unwrap());
    assert_eq!(read(serde_json::json!({})).unwrap(), eviction::Settings::default());
    let own = serde_json::json!({"evictionHard": {"memory.available": "1Gi"}});
    assert_eq!(read(own).unwrap().thresholds.len(), 1);
    let merged =
        serde_json::json!({"evictionHard": {"pid.available": "5%"}, "mergeDefaultEvictionSettings": true});
    assert_eq!(read(merged).unwrap().thresholds.len(), 6);
    assert!(read(serde_json::json!({"evictionHard": {"nodefs.available": "200%"}})).is_err());
    let soft = serde_json::json!({"evictionSoft": {"memory.available": "2Gi"}});
    assert!(read(soft).is_err(), "a soft threshold has a grace period");
}
