//! Signals by number and by the names that image configs and pods use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A signal number, 1 to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Signal(u8);

/// Names by number, from 1.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];
const ALIASES: [(&str, u8); 3] = [("CLD", 17), ("IOT", 6), ("POLL", 29)];
const RT_MIN: u8 = 34;
const RT_MAX: u8 = 64;

impl Signal {
    /// SIGTERM.
    pub const TERM: Self = Self(15);
    /// SIGKILL.
    pub const KILL: Self = Self(9);

    /// Its number.
    pub fn number(self) -> i32 {
        i32::from(self.0)
    }
}

impl Default for Signal {
    fn default() -> Self {
        Self::TERM
    }
}

/// The text names no signal.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not a signal")]
pub struct UnknownSignal(String);

impl FromStr for Signal {
    type Err = UnknownSignal;

    /// Understands `SIGTERM`, `term`, `15`, `SIGRTMIN+3`, `SIGRTMAX-2`.
    fn from_str(text: &str) -> Result<Self, UnknownSignal> {
        let unknown = || UnknownSignal(text.to_owned());
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let offset = |digits: &str| {
            let digits = digits.strip_prefix(['+', '-']).unwrap_or(digits);
            if digits.is_empty() { Ok(0) } else { digits.parse::<u8>().map_err(|_| unknown()) }
        };
        let number = if let Ok(number) = name.parse::<u8>() {
            number
        } else if let Some(index) = NAMES.iter().position(|known| *known == name) {
            index as u8 + 1
        } else if let Some((_, number)) = ALIASES.iter().find(|(alias, _)| *alias == name) {
            *number
        } else if let Some(rest) = name.strip_prefix("RTMIN").filter(|rest| !rest.starts_with('-')) {
            RT_MIN.saturating_add(offset(rest)?)
        } else if let Some(rest) = name.strip_prefix("RTMAX").filter(|rest| !rest.starts_with('+')) {
            RT_MAX.checked_sub(offset(rest)?).filter(|number| *number >= RT_MIN).ok_or_else(unknown)?
        } else {
            return Err(unknown());
        };
        if (1..=RT_MAX).contains(&number) { Ok(Self(number)) } else { Err(unknown()) }
    }
}

impl TryFrom<String> for Signal {
    type Error = UnknownSignal;

    fn try_from(text: String) -> Result<Self, UnknownSignal> {
        text.parse()
    }
}

impl From<Signal> for String {
    fn from(signal: Signal) -> Self {
        signal.to_string()
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            number @ 1..=31 => write!(f, "SIG{}", NAMES[usize::from(number) - 1]),
            RT_MIN => f.write_str("SIGRTMIN"),
            RT_MAX => f.write_str("SIGRTMAX"),
            number @ 35..=49 => write!(f, "SIGRTMIN+{}", number - RT_MIN),
            number @ 50..=63 => write!(f, "SIGRTMAX-{}", RT_MAX - number),
            number => write!(f, "{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_printed_name_parses_to_the_same_signal() {
        for number in 1..=64_u8 {
            let signal: Signal = number.to_string().parse().unwrap();
            assert_eq!(signal.to_string().parse::<Signal>(), Ok(signal));
        }
    }

    #[test]
    fn spellings_of_images_and_pods_are_understood() {
        let cases =
            [("SIGQUIT", 3), ("term", 15), ("9", 9), ("SIGRTMIN+3", 37), ("SIGRTMAX-1", 63), ("SIGPOLL", 29)];
        for (text, number) in cases {
            assert_eq!(text.parse::<Signal>().unwrap().number(), number, "{text}");
        }
        for text in
            ["", "SIG", "0", "65", "SIGNOPE", "SIGRTMIN-1", "SIGRTMAX+1", "SIGRTMIN+99", "SIGRTMAX-40"]
        {
            assert!(text.parse::<Signal>().is_err(), "{text}");
        }
    }
}
