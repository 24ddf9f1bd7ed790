//! Between the wire's messages and this crate's types.

mod messages;
mod statuses;

use thiserror::Error;

use crate::Signal;
use crate::container::{ContainerEventType, ContainerState, MountPropagation};
use crate::linux::{NamespaceMode, ProfileType, SupplementalGroupsPolicy};
use crate::sandbox::{PodSandboxState, Protocol};

/// A message that says what cannot be meant.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BadMessage {
    /// An enum's value that is not known.
    #[error("{number} is no {what}")]
    Number {
        /// The enum.
        what: &'static str,
        /// Its value.
        number: i32,
    },
    /// A message that has to be there.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A setting that this runtime does not have.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
}

/// An enum with numbers on the wire.
pub(crate) trait Wire: Sized {
    fn into_wire(self) -> i32;
    fn from_wire(number: i32) -> Result<Self, BadMessage>;
}

/// Converts a list.
fn all<T, U: TryFrom<T, Error = BadMessage>>(list: Vec<T>) -> Result<Vec<U>, BadMessage> {
    list.into_iter().map(TryInto::try_into).collect()
}

fn port(number: i32) -> Result<u16, BadMessage> {
    u16::try_from(number).map_err(|_| BadMessage::Number { what: "port", number })
}

/// Signals by the wire's numbers, which are alphabetic. The real-time ones follow in two rows.
const SIGNALS: [&str; 34] = [
    "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL", "PIPE",
    "POLL", "PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP", "TTIN", "TTOU",
    "URG", "USR1", "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ",
];
const REAL_TIME: i32 = 35;

fn signal_from_wire(number: i32) -> Result<Option<Signal>, BadMessage> {
    let bad = BadMessage::Number { what: "signal", number };
    let name = match number {
        0 => return Ok(None),
        1..REAL_TIME => SIGNALS[number as usize - 1].to_owned(),
        REAL_TIME..=65 => (number - REAL_TIME + 34).to_string(),
        _ => return Err(bad),
    };
    name.parse().map(Some).map_err(|_| bad)
}

fn signal_to_wire(signal: Option<Signal>) -> i32 {
    let Some(signal) = signal else { return 0 };
    match SIGNALS.iter().position(|name| name.parse() == Ok(signal)) {
        Some(index) => index as i32 + 1,
        None => signal.number() - 34 + REAL_TIME,
    }
}

impl Wire for NamespaceMode {
    fn into_wire(self) -> i32 {
        match self {
            Self::Pod => 0,
            Self::Container => 1,
            Self::Node => 2,
            Self::Target => 3,
        }
    }

    fn from_wire(number: i32) -> Result<Self, BadMessage> {
        match number {
            0 => Ok(Self::Pod),
            1 => Ok(Self::Container),
            2 => Ok(Self::Node),
            3 => Ok(Self::Target),
            other => Err(BadMessage::Number { what: "NamespaceMode", number: other }),
        }
    }
}

impl Wire for SupplementalGroupsPolicy {
    fn into_wire(self) -> i32 {
        match self {
            Self::Merge => 0,
            Self::Strict => 1,
        }
    }

    fn from_wire(number: i32) -> Result<Self, BadMessage> {
        match number {
            0 => Ok(Self::Merge),
            1 => Ok(Self::Strict),
            other => Err(BadMessage::Number { what: "SupplementalGroupsPolicy", number: other }),
        }
    }
}

impl Wire for ProfileType {
    fn into_wire(self) -> i32 {
        match self {
            Self::RuntimeDefault => 0,
            Self::Unconfined => 1,
            Self::Localhost => 2,
        }
    }

    fn from_wire(number: i32) -> Result<Self, BadMessage> {
        match number {
            0 => Ok(Self::RuntimeDefault),
            1 => Ok(Self::Unconfined),
            2 => Ok(Self::Localhost),
            other => Err(BadMessage::Number { what: "ProfileType", number: other }),
        }
    }
}

impl Wire for MountPropagation {
    fn into_wire(self) -> i32 {
        match self {
            Self::Private => 0,
            Self::HostToContainer => 1,
            Self::Bidirectional => 2,
        }
    }

    fn from_wire(number: i32) -> Result<Self, BadMessage> {
        match number {
            0 => Ok(Self::Private),
            1 => Ok(Self::HostToContainer),
            2 => Ok(Self::Bidirectional),
            other => Err(BadMessage::Number { what: "MountPropagation", number: other }),
        }
    }
}

impl Wire for ContainerState {
    fn into_wire(self) -> i32 {
        match self {
            Self::Created => 0,
            Self::Running => 1,
            Self::Exited => 2,
            Self::Unknown => 3,
        }
    }

    fn from_wire(number: i32) -> Result<Self, BadMessage> {
        match number {
            0 => Ok(Self::Created),
            1 => Ok(Self::Running),
            2 => Ok(Self::Exited),
            3 => Ok(Self::Unknown),
            other => Err(BadMessage::Number { what: "ContainerState", number: other }),
        }
    }
}

impl Wire for ContainerEventType {
    fn into_wire(self) -> i32 {
        match self {
            Self::Created => 0,
            Self::Started => 1,
            Self::Stopped => 2,
            Self::Deleted => 3,
        }
    }

    fn from_wire(number: i32) -> Result<Self, BadMessage> {
        match number {
            0 => Ok(Self::Created),
            1 => Ok(Self::Started),
            2 => Ok(Self::Stopped),
            3 => Ok(Self::Deleted),
            other => Err(BadMessage::Number { what: "ContainerEventType", number: other }),
        }
    }
}

impl Wire for PodSandboxState {
    fn into_wire(self) -> i32 {
        match self {
            Self::Ready => 0,
            Self::NotReady => 1,
        }
    }

    fn from_wire(number: i32) -> Result<Self, BadMessage> {
        match number {
            0 => Ok(Self::Ready),
            1 => Ok(Self::NotReady),
            other => Err(BadMessage::Number { what: "PodSandboxState", number: other }),
        }
    }
}

impl Wire for Protocol {
    fn into_wire(self) -> i32 {
        match self {
            Self::Tcp => 0,
            Self::Udp => 1,
            Self::Sctp => 2,
        }
    }

    fn from_wire(number: i32) -> Result<Self, BadMessage> {
        match number {
            0 => Ok(Self::Tcp),
            1 => Ok(Self::Udp),
            2 => Ok(Self::Sctp),
            other => Err(BadMessage::Number { what: "Protocol", number: other }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;

    #[test]
    fn signals_survive_the_way_there_and_back() {
        for number in (1..=31).chain(34..=64) {
            let signal: Signal = number.to_string().parse().unwrap();
            assert_eq!(signal_from_wire(signal_to_wire(Some(signal))), Ok(Some(signal)), "{signal}");
        }
        assert_eq!(signal_from_wire(23), Ok(Some(Signal::TERM)));
        assert_eq!(signal_from_wire(0), Ok(None));
        assert!(signal_from_wire(66).is_err() && signal_from_wire(-1).is_err());
    }

    #[test]
    fn requests_that_cannot_be_meant_are_refused() {
        let mapping = wire::PortMapping { container_port: 70_000, ..Default::default() };
        assert!(crate::PortMapping::try_from(mapping).is_err());
        let option = wire::NamespaceOption { pid: 9, ..Default::default() };
        assert!(crate::NamespaceOption::try_from(option).is_err());
        let config = crate::ContainerConfig { log_path: "a/0.log".into(), tty: true, ..Default::default() };
        let wire = wire::ContainerConfig::from(config.clone());
        assert_eq!(crate::ContainerConfig::try_from(wire), Ok(config));
    }
}
