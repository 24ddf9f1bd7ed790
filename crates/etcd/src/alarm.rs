//! Alarms, as the log has them: what is wrong with which member, until somebody says that it has been looked after.
//!
//! As with etcd, an alarm counts for all members and outlasts restarts and leaders. NOSPACE refuses what takes more room; CORRUPT refuses everything.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::engine::Transaction;
use crate::mutation::Mutation;
use crate::v3::messages::AlarmMember;

/// The quota is used up.
pub const NOSPACE: i32 = 1;
/// The members' data differs.
pub const CORRUPT: i32 = 2;

/// What the names of the settings begin with.
pub const PREFIX: &str = "alarm/";

/// What etcd calls an alarm.
pub fn name(kind: i32) -> &'static str {
    match kind {
        NOSPACE => "NOSPACE",
        CORRUPT => "CORRUPT",
        _ => "NONE",
    }
}

fn setting(alarm: &AlarmMember) -> Bytes {
    format!("{PREFIX}{}/{:016x}", name(alarm.alarm), alarm.member_id).into()
}

fn parse(setting: &[u8]) -> Option<AlarmMember> {
    let (kind, id) = std::str::from_utf8(setting).ok()?.strip_prefix(PREFIX)?.split_once('/')?;
    let alarm = [NOSPACE, CORRUPT].into_iter().find(|known| name(*known) == kind)?;
    Some(AlarmMember { member_id: u64::from_str_radix(id, 16).ok()?, alarm })
}

/// All alarms.
pub fn all(settings: &BTreeMap<Bytes, Bytes>) -> Vec<AlarmMember> {
    let from = settings.range(Bytes::from_static(PREFIX.as_bytes())..);
    let names = from.map(|(name, _)| name).take_while(|name| name.starts_with(PREFIX.as_bytes()));
    names.filter_map(|name| parse(name)).collect()
}

/// Which kinds there are, a bit for each.
pub fn kinds(settings: &BTreeMap<Bytes, Bytes>) -> u32 {
    all(settings).iter().fold(0, |kinds, alarm| kinds | 1 << alarm.alarm)
}

/// Raises an alarm; `false` if it has been raised before.
pub fn raise(transaction: &mut Transaction<'_>, alarm: &AlarmMember) -> bool {
    let name = setting(alarm);
    let new = !transaction.settings().contains_key(&name);
    if new {
        transaction.apply(Mutation::Setting { name, value: Some(Bytes::from_static(b"1")) });
    }
    new
}

/// Ends an alarm, or all if it is none in particular. Returns those that have ended.
pub fn disarm(transaction: &mut Transaction<'_>, alarm: &AlarmMember) -> Vec<AlarmMember> {
    let mut ended = all(transaction.settings());
    ended.retain(|raised| alarm.alarm == 0 && alarm.member_id == 0 || raised == alarm);
    for raised in &ended {
        transaction.apply(Mutation::Setting { name: setting(raised), value: None });
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_read_back_as_they_were_raised() {
        let alarms = [
            AlarmMember { member_id: 0, alarm: CORRUPT },
            AlarmMember { member_id: u64::MAX, alarm: CORRUPT },
            AlarmMember { member_id: 7, alarm: NOSPACE },
        ];
        let mut settings: BTreeMap<Bytes, Bytes> =
            alarms.iter().map(|alarm| (setting(alarm), Bytes::new())).collect();
        settings.insert("alarm/OTHER/1".into(), Bytes::new());
        settings.insert("alarms".into(), Bytes::new());
        assert_eq!(all(&settings), alarms);
        assert_eq!(kinds(&settings), 1 << NOSPACE | 1 << CORRUPT);
    }
}
