use super::*;
use serde_json::json;

fn config(mut rest: Value) -> Value {
    if rest.get("ignition").is_none() {
        rest["ignition"] = json!({"version": "3.3.0"});
    } else if rest["ignition"].get("version").is_none() {
        rest["ignition"]["version"] = json!("3.3.0");
    }
    rest
}

/// Configs that break one rule each, with the place of the breach.
fn breaches() -> Vec<(Value, Severity, &'static str)> {
    use Severity::{Error, Warning};
    let sha = "sha256-".to_owned() + &"a".repeat(64);
    vec![
        (json!({"ignition": {"version": "4"}}), Error, "$.ignition.version"),
        (json!({"ignition": {"version": "2.2.0"}}), Error, "$.ignition.version"),
        (json!({"ignition": {"version": "3.9.0"}}), Error, "$.ignition.version"),
        (json!({"ignition": {"version": 3}}), Error, "$.ignition.version"),
        (json!({"what": 1}), Warning, "$.what"),
        (json!({"ignition": {"version": "3.2.0"}, "kernelArguments": {}}), Warning, "$.kernelArguments"),
        (json!({"storage": []}), Error, "$.storage"),
        (json!({"storage": {"files": {}}}), Error, "$.storage.files"),
        (json!({"storage": {"files": [{"path": 1}]}}), Error, "$.storage.files.0.path"),
        (json!({"storage": {"files": [{"path": "/a", "mode": "0644"}]}}), Error, "$.storage.files.0.mode"),
        (json!({"storage": {"files": [{"path": "/a", "mode": 1.5}]}}), Error, "$.storage.files.0.mode"),
        (
            json!({"storage": {"files": [{"path": "/a", "overwrite": 1}]}}),
            Error,
            "$.storage.files.0.overwrite",
        ),
        (json!({"storage": {"files": [{}]}}), Error, "$.storage.files.0.path"),
        (json!({"storage": {"files": [{"path": "a"}]}}), Error, "$.storage.files.0.path"),
        (json!({"storage": {"files": [{"path": "/a/../b"}]}}), Error, "$.storage.files.0.path"),
        (json!({"storage": {"files": [{"path": "/a//b"}]}}), Error, "$.storage.files.0.path"),
        (json!({"storage": {"directories": [{"path": "/a/"}]}}), Error, "$.storage.directories.0.path"),
        (json!({"storage": {"files": [{"path": "/a"}, {"path": "/a"}]}}), Error, "$.storage.files.1.path"),
        (
            json!({"storage": {"files": [{"path": "/a"}], "links": [{"path": "/a", "target": "/b"}]}}),
            Error,
            "$.storage.links.0.path",
        ),
        (
            json!({"storage": {"links": [{"path": "/l", "target": "/b"}], "files": [{"path": "/l/x"}]}}),
            Error,
            "$.storage.files.0.path",
        ),
        (json!({"storage": {"links": [{"path": "/l"}]}}), Error, "$.storage.links.0.target"),
        (
            json!({"storage": {"links": [{"path": "/l", "target": "/d", "hard": true}], "directories": [{"path": "/d"}]}}),
            Error,
            "$.storage.links.0.target",
        ),
        (json!({"storage": {"files": [{"path": "/a", "mode": -1}]}}), Error, "$.storage.files.0.mode"),
        (json!({"storage": {"files": [{"path": "/a", "mode": 4096}]}}), Error, "$.storage.files.0.mode"),
        (json!({"storage": {"files": [{"path": "/a", "mode": 2541}]}}), Warning, "$.storage.files.0.mode"),
        (
            json!({"storage": {"files": [{"path": "/a", "overwrite": true}]}}),
            Error,
            "$.storage.files.0.overwrite",
        ),
        (
            json!({"storage": {"files": [{"path": "/a", "user": {"id": 0, "name": "root"}}]}}),
            Error,
            "$.storage.files.0.user",
        ),
        (
            json!({"storage": {"files": [{"path": "/a", "contents": {"source": "ftp://x"}}]}}),
            Error,
            "$.storage.files.0.contents.source",
        ),
        (
            json!({"storage": {"files": [{"path": "/a", "contents": {"source": "data:x"}}]}}),
            Error,
            "$.storage.files.0.contents.source",
        ),
        (
            json!({"storage": {"files": [{"path": "/a", "contents": {"source": "data:,", "compression": "xz"}}]}}),
            Error,
            "$.storage.files.0.contents.compression",
        ),
        (
            json!({"storage": {"files": [{"path": "/a", "contents": {"verification": {"hash": sha}}}]}}),
            Error,
            "$.storage.files.0.contents.verification.hash",
        ),
        (
            json!({"storage": {"files": [{"path": "/a", "contents": {"source": "data:,", "verification": {"hash": "abc"}}}]}}),
            Error,
            "$.storage.files.0.contents.verification.hash",
        ),
        (
            json!({"storage": {"files": [{"path": "/a", "contents": {"source": "data:,", "verification": {"hash": "md5-ab"}}}]}}),
            Error,
            "$.storage.files.0.contents.verification.hash",
        ),
        (
            json!({"storage": {"files": [{"path": "/a", "contents": {"source": "data:,", "verification": {"hash": "sha512-ab"}}}]}}),
            Error,
            "$.storage.files.0.contents.verification.hash",
        ),
        (
            json!({"storage": {"files": [{"path": "/a", "contents": {"source": "data:,", "httpHeaders": [{"name": "A", "value": "b"}]}}]}}),
            Error,
            "$.storage.files.0.contents.httpHeaders",
        ),
        (
            json!({"storage": {"files": [{"path": "/a", "contents": {"source": "http://x", "httpHeaders": [{"value": "b"}]}}]}}),
            Error,
            "$.storage.files.0.contents.httpHeaders.0.name",
        ),
        (
            json!({"storage": {"files": [{"path": "/a", "append": [{"source": "x"}]}]}}),
            Error,
            "$.storage.files.0.append.0.source",
        ),
        (json!({"storage": {"filesystems": [{"path": "/x"}]}}), Error, "$.storage.filesystems.0.device"),
        (json!({"storage": {"disks": [{}]}}), Error, "$.storage.disks.0.device"),
        (json!({"ignition": {"config": {"merge": [{}]}}}), Error, "$.ignition.config.merge.0.source"),
        (
            json!({"ignition": {"security": {"tls": {"certificateAuthorities": [{}]}}}}),
            Error,
            "$.ignition.security.tls.certificateAuthorities.0.source",
        ),
        (json!({"ignition": {"proxy": {"httpProxy": "ftp://x"}}}), Error, "$.ignition.proxy.httpProxy"),
        (json!({"ignition": {"proxy": {"httpsProxy": "http://x"}}}), Warning, "$.ignition.proxy.httpsProxy"),
        (json!({"systemd": {"units": [{"name": "a"}]}}), Error, "$.systemd.units.0.name"),
        (json!({"systemd": {"units": [{"name": "a.conf"}]}}), Error, "$.systemd.units.0.name"),
        (
            json!({"systemd": {"units": [{"name": "a.service"}, {"name": "a.service"}]}}),
            Error,
            "$.systemd.units.1.name",
        ),
        (
            json!({"systemd": {"units": [{"name": "a.service", "contents": "[Unit]\nx"}]}}),
            Error,
            "$.systemd.units.0.contents",
        ),
        (
            json!({"systemd": {"units": [{"name": "a.service", "contents": "[Unit\n"}]}}),
            Error,
            "$.systemd.units.0.contents",
        ),
        (
            json!({"systemd": {"units": [{"name": "a.service", "enabled": true, "contents": "[Unit]\nA=b"}]}}),
            Warning,
            "$.systemd.units.0.contents",
        ),
        (
            json!({"systemd": {"units": [{"name": "a.service", "dropins": [{"name": "x"}]}]}}),
            Error,
            "$.systemd.units.0.dropins.0.name",
        ),
        (
            json!({"systemd": {"units": [{"name": "a.service", "contents": "[Unit]"}]}, "storage": {"files": [{"path": "/etc/systemd/system/a.service"}]}}),
            Error,
            "$.systemd.units.0.name",
        ),
        (json!({"passwd": {"users": [{}]}}), Error, "$.passwd.users.0.name"),
        (json!({"passwd": {"users": [{"name": "a"}, {"name": "a"}]}}), Error, "$.passwd.users.1.name"),
        (json!({"passwd": {"groups": [{"name": "a"}, {"name": "a"}]}}), Error, "$.passwd.groups.1.name"),
    ]
}

#[test]
fn every_rule_has_a_breach_that_is_found_at_its_place() {
    for (case, severity, path) in breaches() {
        let case = config(case);
        let report = validate(&case);
        let found = report.entries.iter().any(|entry| entry.path == path && entry.severity == severity);
        assert!(found, "{case}: wanted {severity:?} at {path}, found {report}");
    }
}

#[test]
fn a_full_config_passes_without_a_word() {
    let case = json!({
        "ignition": {"version": "3.3.0", "config": {"merge": [{"source": "https://h:22623/config/master",
            "verification": {"hash": "sha512-".to_owned() + &"0".repeat(128)}}]},
            "security": {"tls": {"certificateAuthorities": [{"source": "data:,x"}]}}, "timeouts": {"httpTotal": 5}},
        "kernelArguments": {"shouldExist": ["a=b"]},
        "storage": {"files": [{"path": "/a", "mode": 420, "overwrite": true, "contents": {"source": "data:,x"}}],
            "directories": [{"path": "/d", "mode": 448}], "links": [{"path": "/l", "target": "../a", "hard": false}]},
        "systemd": {"units": [{"name": "a@.service", "enabled": true,
            "contents": "# c\n[Unit]\nA=b \\\n  more\n[Install]\nWantedBy=x", "dropins": [{"name": "d.conf", "contents": "[X]\nA="}]}]},
        "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["k"]}]},
    });
    assert_eq!(validate(&case).entries, []);
}

/// The reference implementation refuses what we refuse and takes what we take.
#[test]
fn ignition_validate_agrees_on_every_breach() {
    let Some(program) = testing::program("ignition-validate") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.ign");
    let mut differ = Vec::new();
    for (case, _, _) in breaches() {
        let case = config(case);
        std::fs::write(&path, case.to_string()).unwrap();
        let output = std::process::Command::new(&program).arg(&path).output().unwrap();
        // Rules that came after the version that Debian has: units beside files, users without name.
        let newer = case["passwd"]["users"][0] == json!({})
            || case["storage"]["files"][0]["path"] == "/etc/systemd/system/a.service";
        if !newer && output.status.success() == validate(&case).has_errors() {
            differ.push(format!("{case}: it says {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}
