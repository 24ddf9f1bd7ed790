//! Other firewalls of the host. Docker and ufw make the iptables chain FORWARD, ufw also INPUT, drop what they do not know: pods
//! would reach neither each other nor the host's DNS. A drop cannot be overruled from another table, so the only remedy is a
//! rule in the same chain. Where the chain is iptables' own (in its nftables form), we put in the rule that `iptables -I FORWARD
//! -i kpod+ -j ACCEPT` would; for any other chain that drops, we say so.

use std::collections::BTreeSet;

use netlink::Error;
use netlink::nft::{Batch, Expr, Family, Hook, ListedChain, ListedRule, MetaKey, Nftables, Rule, Verdict};
use tracing::{info, warn};

use crate::device::PREFIX;

/// The table of iptables.
const TABLE: &str = "filter";

/// What a chain needs.
#[derive(Debug, PartialEq, Eq)]
enum Need {
    /// It lets packets pass, or lies elsewhere.
    Nothing,
    /// Rules for packets that come from pods, and go to them.
    Rules(&'static [MetaKey]),
    /// It is not ours to change.
    Warning,
}

fn need(chain: &ListedChain, own_table: &str) -> Need {
    let keys: &[MetaKey] = match chain.hook {
        hook if hook == Hook::Input as u32 => &[MetaKey::InputName],
        hook if hook == Hook::Forward as u32 => &[MetaKey::InputName, MetaKey::OutputName],
        _ => return Need::Nothing,
    };
    if !chain.drops || chain.table == own_table {
        Need::Nothing
    } else if chain.table == TABLE && matches!(chain.name.as_str(), "FORWARD" | "INPUT") {
        Need::Rules(keys)
    } else {
        Need::Warning
    }
}

/// The form in which iptables itself writes such a rule, so that it can still read its table.
fn rule(key: MetaKey) -> Rule {
    vec![
        Expr::Meta { key, to: 0 },
        Expr::Equal { reg: 0, value: PREFIX.as_bytes().to_vec() },
        Expr::Counter,
        Expr::Verdict(Verdict::Accept),
    ]
}

fn is_ours(rule: &ListedRule) -> bool {
    rule.expressions.windows(PREFIX.len()).any(|bytes| bytes == PREFIX.as_bytes())
}

/// Puts our rules where they are needed and missing. `told` holds the chains that were already complained of.
pub fn pass(
    nftables: &Nftables,
    family: Family,
    own_table: &str,
    told: &mut BTreeSet<String>,
) -> Result<(), Error> {
    for chain in nftables.base_chains(family)? {
        let keys = match need(&chain, own_table) {
            Need::Nothing => continue,
            Need::Warning => {
                if told.insert(format!("{} {}", chain.table, chain.name)) {
                    warn!(table = %chain.table, chain = %chain.name, "a firewall drops unknown packets: let devices kpod* pass");
                }
                continue;
            }
            Need::Rules(keys) => keys,
        };
        if nftables.rules(family, TABLE, &chain.name)?.iter().filter(|rule| is_ours(rule)).count()
            >= keys.len()
        {
            continue;
        }
        info!(chain = %chain.name, "letting pod traffic through the host's iptables");
        let mut batch = Batch::new(family, TABLE);
        for key in keys {
            batch.insert_rule(&chain.name, &rule(*key));
        }
        nftables.commit(&batch)?;
    }
    Ok(())
}

/// Takes our rules out again.
pub fn retract(nftables: &Nftables, family: Family) -> Result<(), Error> {
    let chains = nftables.base_chains(family)?;
    for chain in chains.iter().filter(|chain| chain.table == TABLE) {
        let mut batch = Batch::new(family, TABLE);
        for rule in nftables.rules(family, TABLE, &chain.name)?.iter().filter(|rule| is_ours(rule)) {
            batch.delete_rule(&chain.name, rule.handle);
        }
        nftables.commit(&batch)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chains_that_drop_need_something_and_only_iptables_is_changed() {
        let chain = |table: &str, name: &str, hook: Hook, drops| ListedChain {
            table: table.to_owned(),
            name: name.to_owned(),
            hook: hook as u32,
            drops,
        };
        let cases = [
            (chain("filter", "FORWARD", Hook::Forward, true), 2, false),
            (chain("filter", "INPUT", Hook::Input, true), 1, false),
            (chain("filter", "OUTPUT", Hook::Output, true), 0, false),
            (chain("filter", "FORWARD", Hook::Forward, false), 0, false),
            (chain("firewalld", "filter_FORWARD", Hook::Forward, true), 0, true),
            (chain("kelson0", "x", Hook::Forward, true), 0, false),
        ];
        for (chain, rules, warns) in cases {
            let need = need(&chain, "kelson0");
            assert_eq!(need == Need::Warning, warns, "{chain:?}");
            assert_eq!(if let Need::Rules(keys) = need { keys.len() } else { 0 }, rules, "{chain:?}");
        }
    }
}
