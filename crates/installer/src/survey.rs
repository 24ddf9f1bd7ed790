//! The questions of `kelson create install-config`: each asked only if no flag answered it, and asked again until the
//! answer is right.

use std::io::{BufRead, IsTerminal as _, Write};

use serde_json::json;
use thiserror::Error;

use crate::install_config::{self, ConfigError};

/// What flags answered.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)]
pub struct Answers {
    pub name: Option<String>,
    pub base_domain: Option<String>,
    pub platform: Option<String>,
    pub control_plane_replicas: Option<i64>,
    pub compute_replicas: Option<i64>,
    pub machine_network: Option<String>,
    pub pull_secret: Option<String>,
    pub ssh_key: Option<String>,
}

/// Why there is no config.
#[derive(Debug, Error)]
pub enum SurveyError {
    /// Nobody there to ask.
    #[error("{0} is needed: this is not a terminal, so give --{0}, or write install-config.yaml into --dir")]
    NotAsked(&'static str),
    /// The one asked has gone.
    #[error("the answer ended before it was complete")]
    Ended,
    /// The answers do not make a config.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A platform with more questions than this asks.
    #[error(
        "platform {0:?} cannot be made from questions; write install-config.yaml (see `kelson explain install-config.platform`)"
    )]
    Platform(String),
    /// The config cannot be written.
    #[error("cannot write install-config.yaml")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// The terminal failed.
    #[error("cannot read the answer")]
    Io(#[from] std::io::Error),
}

/// Someone who can be asked.
pub trait Ask {
    /// Whether there is anyone.
    fn is_present(&self) -> bool;
    /// Puts a question; the answer is a line without its end.
    fn ask(&mut self, question: &str, default: &str) -> Result<String, SurveyError>;
    /// Says why an answer will not do.
    fn tell(&mut self, text: &str) -> Result<(), SurveyError>;
}

/// Standard input and error, if they are a terminal.
pub struct Terminal {
    present: bool,
}

impl Terminal {
    /// Looks whether there is one.
    pub fn open() -> Self {
        Self { present: std::io::stdin().is_terminal() && std::io::stderr().is_terminal() }
    }
}

impl Ask for Terminal {
    fn is_present(&self) -> bool {
        self.present
    }

    fn ask(&mut self, question: &str, default: &str) -> Result<String, SurveyError> {
        let hint = if default.is_empty() { String::new() } else { format!(" [{default}]") };
        let mut err = std::io::stderr().lock();
        write!(err, "{question}{hint}: ")?;
        err.flush()?;
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line)? == 0 {
            return Err(SurveyError::Ended);
        }
        let line = line.trim();
        Ok(if line.is_empty() { default.to_owned() } else { line.to_owned() })
    }

    fn tell(&mut self, text: &str) -> Result<(), SurveyError> {
        Ok(writeln!(std::io::stderr(), "{text}")?)
    }
}

/// A question: the flag that answers it, its text, its default, and the path whose faults belong to it.
struct Question {
    flag: &'static str,
    text: &'static str,
    default: &'static str,
    path: &'static str,
}

const QUESTIONS: &[Question] = &[
    Question { flag: "name", text: "Cluster name", default: "", path: "metadata.name" },
    Question { flag: "base-domain", text: "Base domain", default: "", path: "baseDomain" },
    Question {
        flag: "platform",
        text: "Platform (none, local, external)",
        default: "none",
        path: "platform",
    },
    Question {
        flag: "control-plane-replicas",
        text: "Control plane machines",
        default: "3",
        path: "controlPlane",
    },
    Question { flag: "compute-replicas", text: "Compute machines", default: "3", path: "compute" },
    Question { flag: "machine-network", text: "Machine network", default: "10.0.0.0/16", path: "networking" },
    Question {
        flag: "pull-secret-file",
        text: "Pull secret (one line of JSON)",
        default: "",
        path: "pullSecret",
    },
    Question { flag: "ssh-key-file", text: "SSH public key (empty for none)", default: "", path: "sshKey" },
];

/// Fills what flags left open and returns the file's text.
pub fn ask(answers: Answers, who: &mut dyn Ask) -> Result<String, SurveyError> {
    let mut given: Vec<Option<String>> = vec![
        answers.name,
        answers.base_domain,
        answers.platform,
        answers.control_plane_replicas.map(|count| count.to_string()),
        answers.compute_replicas.map(|count| count.to_string()),
        answers.machine_network,
        answers.pull_secret.map(|text| text.trim().to_owned()),
        answers.ssh_key.map(|text| text.trim().to_owned()),
    ];
    for index in 0..QUESTIONS.len() {
        let question = &QUESTIONS[index];
        if given[index].is_some() {
            continue;
        }
        let local = given[2].as_deref() == Some("local");
        if !who.is_present() {
            // What has a default, or is optional, needs nobody.
            let optional = question.flag == "ssh-key-file" || (question.flag == "pull-secret-file" && local);
            if question.default.is_empty() && !optional {
                return Err(SurveyError::NotAsked(question.flag));
            }
            given[index] = Some(question.default.to_owned());
            continue;
        }
        loop {
            given[index] = Some(who.ask(question.text, question.default)?);
            match fault(&compose(&given)?, question.path) {
                None => break,
                Some(text) => who.tell(&text)?,
            }
        }
    }
    let text = compose(&given)?;
    install_config::load(&text)?;
    Ok(text)
}

/// The first fault that the answer to a question causes.
fn fault(text: &str, path: &str) -> Option<String> {
    match install_config::load(text) {
        Err(ConfigError::Invalid(problems)) => {
            problems.iter().find(|problem| problem.path.starts_with(path)).map(ToString::to_string)
        }
        _ => None,
    }
}

fn compose(given: &[Option<String>]) -> Result<String, SurveyError> {
    let text = |index: usize| given[index].clone().unwrap_or_else(|| QUESTIONS[index].default.to_owned());
    // A number that is none is reported by the check like any other wrong value.
    let number = |index: usize| text(index).parse::<i64>().map_or_else(|_| json!(text(index)), |n| json!(n));
    let platform = match text(2).as_str() {
        "baremetal" => return Err(SurveyError::Platform("baremetal".to_owned())),
        name => json!({name: {}}),
    };
    let mut config = json!({
        "apiVersion": "v1",
        "baseDomain": text(1),
        "metadata": {"name": text(0)},
        "controlPlane": {"name": "master", "replicas": number(3)},
        "compute": [{"name": "worker", "replicas": number(4)}],
        "networking": {
            "networkType": "OVNKubernetes",
            "machineNetwork": [{"cidr": text(5)}],
            "clusterNetwork": [{"cidr": "10.128.0.0/14", "hostPrefix": 23}],
            "serviceNetwork": ["172.30.0.0/16"],
        },
        "platform": platform,
        "pullSecret": text(6),
    });
    if !text(7).is_empty() {
        config["sshKey"] = json!(text(7));
    }
    Ok(serde_yaml_ng::to_string(&config)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Script {
        present: bool,
        answers: Vec<&'static str>,
        told: Vec<String>,
    }

    impl Ask for Script {
        fn is_present(&self) -> bool {
            self.present
        }
        fn ask(&mut self, _: &str, default: &str) -> Result<String, SurveyError> {
            if self.answers.is_empty() {
                return Err(SurveyError::Ended);
            }
            let answer = self.answers.remove(0);
            Ok(if answer.is_empty() { default.to_owned() } else { answer.to_owned() })
        }
        fn tell(&mut self, text: &str) -> Result<(), SurveyError> {
            self.told.push(text.to_owned());
            Ok(())
        }
    }

    #[test]
    fn wrong_answers_are_asked_again() {
        let mut script = Script {
            present: true,
            answers: vec![
                "Wrong",
                "right",
                "example.com",
                "",
                "2",
                "3",
                "0",
                "10.0.0.1/16",
                "",
                "nonsense",
                r#"{"auths":{"a.b":{"auth":"dTpw"}}}"#,
                "",
            ],
            told: Vec::new(),
        };
        let text = ask(Answers::default(), &mut script).unwrap();
        assert!(text.contains("name: right"));
        assert_eq!(script.told.len(), 4, "{:?}", script.told);
        let (config, _) = install_config::load(&text).unwrap();
        assert_eq!((config.control_plane_replicas(), config.compute_replicas()), (3, 0));
    }

    #[test]
    fn without_a_terminal_flags_must_say_what_has_no_default() {
        let mut nobody = Script { present: false, answers: Vec::new(), told: Vec::new() };
        let error = ask(Answers::default(), &mut nobody).unwrap_err();
        assert!(matches!(error, SurveyError::NotAsked("name")));
        let answers = Answers {
            name: Some("a".to_owned()),
            base_domain: Some("example.com".to_owned()),
            platform: Some("local".to_owned()),
            ..Answers::default()
        };
        assert!(ask(answers, &mut nobody).unwrap().contains("local: {}"));
    }
}
