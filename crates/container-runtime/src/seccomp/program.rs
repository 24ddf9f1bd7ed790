//! Profiles, and the BPF programs that the kernel runs for them.
//!
//! Calls that are answered the same whatever their arguments are tested by ranges of numbers; the kernel remembers which of them
//! are simply allowed. A call with conditions gets a block of its own.

use libc::sock_filter;
use thiserror::Error;

use super::calls;

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Allow,
    /// Allowed, and written to the audit log.
    Log,
    Errno(u16),
    Trap,
    Trace(u16),
    KillThread,
    KillProcess,
}

impl Action {
    fn code(self) -> u32 {
        match self {
            Self::Allow => 0x7fff_0000,
            Self::Log => 0x7ffc_0000,
            Self::Trace(message) => 0x7ff0_0000 | u32::from(message),
            Self::Errno(errno) => 0x0005_0000 | u32::from(errno),
            Self::Trap => 0x0003_0000,
            Self::KillThread => 0,
            Self::KillProcess => 0x8000_0000,
        }
    }
}

/// How an argument is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    NotEqual,
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
    /// `argument & value == second`.
    MaskedEqual,
}

/// A condition on one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// 0 to 5.
    pub argument: u8,
    pub operator: Operator,
    pub value: u64,
    pub second: u64,
}

/// What is answered to one call when all conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub number: u32,
    pub conditions: Vec<Condition>,
    pub action: Action,
}

/// A profile: the first rule that fits answers, or else the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub default: Action,
    pub rules: Vec<Rule>,
    /// `SECCOMP_FILTER_FLAG_*`.
    pub flags: u32,
}

/// Why a profile is no program.
#[derive(Debug, Error)]
pub enum TooLarge {
    #[error("the profile needs {0} instructions, the kernel takes 4096")]
    Program(usize),
    #[error("the conditions on one call are too many")]
    Block,
}

const MAX_PROGRAM: usize = 4096;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
/// Numbers from here on are of x32, which shares the architecture's code.
const X32: u32 = 0x4000_0000;

// Offsets in struct seccomp_data.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

fn load(offset: u32) -> sock_filter {
    sock_filter { code: 0x20, jt: 0, jf: 0, k: offset } // A = data[offset]
}

fn mask(bits: u32) -> sock_filter {
    sock_filter { code: 0x54, jt: 0, jf: 0, k: bits } // A &= bits
}

fn answer(action: Action) -> sock_filter {
    sock_filter { code: 0x06, jt: 0, jf: 0, k: action.code() } // return
}

fn if_equal(value: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: 0x15, jt: yes, jf: no, k: value }
}

fn if_greater(value: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: 0x25, jt: yes, jf: no, k: value }
}

fn if_at_least(value: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: 0x35, jt: yes, jf: no, k: value }
}

impl Profile {
    /// The program for the kernel.
    pub fn assemble(&self) -> Result<Vec<sock_filter>, TooLarge> {
        let refused = Action::Errno(libc::EPERM as u16);
        let mut program = vec![
            load(ARCH),
            if_equal(ARCHITECTURE, 1, 0),
            answer(refused), // calls of another architecture have other numbers
            load(NUMBER),
            if_at_least(X32, 0, 1),
            answer(refused),
        ];
        if matches!(self.default, Action::Errno(_)) {
            // A program that finds a new call absent has another way; one that finds it forbidden may give up.
            program.extend([if_greater(calls::highest(), 0, 1), answer(Action::Errno(libc::ENOSYS as u16))]);
        }
        let (plain, conditional) = self.sorted();
        for (first, last, action) in ranges(plain) {
            program.extend([if_at_least(first, 0, 2), if_greater(last, 1, 0), answer(action)]);
        }
        for (number, rules) in conditional {
            let block = self.block(&rules);
            let length = u8::try_from(block.len()).map_err(|_| TooLarge::Block)?;
            program.push(if_equal(number, 0, length));
            program.extend(block);
        }
        program.push(answer(self.default));
        match program.len() <= MAX_PROGRAM {
            true => Ok(program),
            false => Err(TooLarge::Program(program.len())),
        }
    }

    /// Calls that are answered without a look at their arguments, and the others with their rules.
    fn sorted(&self) -> (Vec<(u32, Action)>, Vec<(u32, Vec<&Rule>)>) {
        let mut by_number: std::collections::BTreeMap<u32, Vec<&Rule>> = Default::default();
        for rule in &self.rules {
            by_number.entry(rule.number).or_default().push(rule);
        }
        let (mut plain, mut conditional) = (Vec::new(), Vec::new());
        for (number, rules) in by_number {
            match rules[0].conditions.is_empty() {
                true => plain.push((number, rules[0].action)),
                false => conditional.push((number, rules)),
            }
        }
        (plain, conditional)
    }

    /// Always answers. Each rule ends where the next begins.
    fn block(&self, rules: &[&Rule]) -> Vec<sock_filter> {
        let mut block = Vec::new();
        for rule in rules {
            let mut tests = vec![answer(rule.action)];
            for condition in rule.conditions.iter().rev() {
                // From the end: what fails leaps over all that is already there.
                let mut test = test(condition, tests.len());
                test.append(&mut tests);
                tests = test;
            }
            block.append(&mut tests);
        }
        block.push(answer(self.default));
        block
    }
}

/// Instructions that go on after themselves if the condition holds, and else leap over `rest` more. The two halves of an
/// argument are compared one after the other.
fn test(condition: &Condition, rest: usize) -> Vec<sock_filter> {
    let Condition { argument, operator, value, second } = *condition;
    let (low, high) = (ARGUMENTS + 8 * u32::from(argument), ARGUMENTS + 8 * u32::from(argument) + 4);
    let halves = |value: u64| (value as u32, (value >> 32) as u32);
    let (low_value, high_value) = halves(value);
    // A block of more than 255 instructions is refused as a whole, so what is cut off here is never run.
    let away = |more: usize| u8::try_from(rest + more).unwrap_or(u8::MAX);
    match operator {
        Operator::Equal => {
            vec![load(high), if_equal(high_value, 0, away(2)), load(low), if_equal(low_value, 0, away(0))]
        }
        Operator::NotEqual => {
            vec![load(high), if_equal(high_value, 0, 2), load(low), if_equal(low_value, away(0), 0)]
        }
        Operator::MaskedEqual => {
            let (low_wanted, high_wanted) = halves(second);
            vec![
                load(high),
                mask(high_value),
                if_equal(high_wanted, 0, away(3)),
                load(low),
                mask(low_value),
                if_equal(low_wanted, 0, away(0)),
            ]
        }
        Operator::Greater | Operator::GreaterOrEqual => vec![
            load(high),
            if_greater(high_value, 3, 0),
            if_equal(high_value, 0, away(2)),
            load(low),
            match operator {
                Operator::Greater => if_greater(low_value, 0, away(0)),
                _ => if_at_least(low_value, 0, away(0)),
            },
        ],
        Operator::Less | Operator::LessOrEqual => vec![
            load(high),
            if_greater(high_value, away(3), 0),
            if_equal(high_value, 0, 2),
            load(low),
            match operator {
                Operator::Less => if_at_least(low_value, away(0), 0),
                _ => if_greater(low_value, away(0), 0),
            },
        ],
    }
}

/// Neighbouring numbers with the same answer.
fn ranges(plain: Vec<(u32, Action)>) -> Vec<(u32, u32, Action)> {
    let mut all: Vec<(u32, u32, Action)> = Vec::new();
    for (number, action) in plain {
        match all.last_mut() {
            Some((_, last, same)) if *last + 1 == number && *same == action => *last = number,
            _ => all.push((number, number, action)),
        }
    }
    all
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const ALLOW: u32 = 0x7fff_0000;
    pub const ERRNO: u32 = 0x0005_0000;

    /// Runs the program as the kernel would.
    pub fn run(program: &[sock_filter], number: u32, arguments: &[u64]) -> u32 {
        let (mut accumulator, mut next) = (0_u32, 0_usize);
        loop {
            let step = program[next];
            next += 1;
            let jump = |taken: bool| usize::from(if taken { step.jt } else { step.jf });
            match step.code {
                0x20 => {
                    accumulator = match step.k {
                        NUMBER => number,
                        ARCH => ARCHITECTURE,
                        offset => {
                            let argument =
                                arguments.get((offset - ARGUMENTS) as usize / 8).copied().unwrap_or(0);
                            (argument >> (8 * ((offset - ARGUMENTS) % 8))) as u32
                        }
                    }
                }
                0x06 => return step.k,
                0x54 => accumulator &= step.k,
                0x15 => next += jump(accumulator == step.k),
                0x25 => next += jump(accumulator > step.k),
                0x35 => next += jump(accumulator >= step.k),
                code => panic!("unknown instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn comparisons_are_of_64_bits() {
        let interesting = [
            0_u64,
            1,
            7,
            8,
            u64::from(u32::MAX),
            1 << 32,
            (1 << 32) + 7,
            (7 << 32) + 8,
            u64::MAX - 1,
            u64::MAX,
        ];
        type Holds = fn(u64, u64, u64) -> bool;
        let operators: [(Operator, Holds); 7] = [
            (Operator::Equal, |a, b, _| a == b),
            (Operator::NotEqual, |a, b, _| a != b),
            (Operator::Less, |a, b, _| a < b),
            (Operator::LessOrEqual, |a, b, _| a <= b),
            (Operator::Greater, |a, b, _| a > b),
            (Operator::GreaterOrEqual, |a, b, _| a >= b),
            (Operator::MaskedEqual, |a, b, c| a & b == c),
        ];
        for (operator, holds) in operators {
            for value in interesting {
                for second in [0, value, 7] {
                    // Behind another condition, with another rule behind it: leaps must end in the right places.
                    let first = Condition { argument: 1, operator: Operator::Equal, value: 5, second: 0 };
                    let condition = Condition { argument: 0, operator, value, second };
                    let profile = Profile {
                        default: Action::KillProcess,
                        rules: vec![
                            Rule { number: 3, conditions: vec![first, condition], action: Action::Allow },
                            Rule { number: 3, conditions: vec![first], action: Action::Errno(9) },
                        ],
                        flags: 0,
                    };
                    let program = profile.assemble().unwrap();
                    for argument in interesting {
                        let expected = if holds(argument, value, second) { ALLOW } else { ERRNO | 9 };
                        let got = run(&program, 3, &[argument, 5]);
                        assert_eq!(got, expected, "{argument:#x} {operator:?} {value:#x} {second:#x}");
                        assert_eq!(run(&program, 3, &[argument, 6]), 0x8000_0000);
                    }
                }
            }
        }
    }
}
