//! Feature gates. There are none here: every feature is as v1.36 has it by default. A name that v1.36 does not know is refused
//! as upstream refuses it, and a wish that differs from the default is told to the operator, so that nobody believes it granted.

/// The gates that v1.36 knows, with their defaults.
const GATES: &str = include_str!("gates.txt");

/// Reads `Name=true` or `kube:Name=true`. Says which of them ask for something else than there is.
pub fn check(wishes: &[String]) -> Result<Vec<String>, String> {
    let mut vain = Vec::new();
    for wish in wishes.iter().filter(|wish| !wish.is_empty()) {
        let wanted = wish.strip_prefix("kube:").unwrap_or(wish);
        let (name, value) = wanted
            .split_once('=')
            .filter(|(_, value)| matches!(*value, "true" | "false"))
            .ok_or_else(|| format!("{wish:?} is not of the form Name=true"))?;
        let known = GATES.lines().filter_map(|line| line.split_once('=')).find(|(own, _)| *own == name);
        let (_, default) = known.ok_or_else(|| format!("unrecognized feature gate: {name}"))?;
        if value != default {
            vain.push(wanted.to_owned());
        }
    }
    Ok(vain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vain(wishes: &[&str]) -> Result<Vec<String>, String> {
        check(&wishes.iter().map(|wish| (*wish).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn only_gates_of_this_version_are_known() {
        assert_eq!(vain(&["AllAlpha=false", "kube:APIServerIdentity=true"]), Ok(Vec::new()));
        assert_eq!(vain(&["AllAlpha=true"]), Ok(vec!["AllAlpha=true".to_owned()]));
        assert!(vain(&["NoSuchGate=true"]).unwrap_err().contains("NoSuchGate"));
        assert!(vain(&["AllAlpha=maybe"]).is_err() && vain(&["AllAlpha"]).is_err());
    }
}
