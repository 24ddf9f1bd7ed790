//! Who a container runs as: numbers from names, by the image's own /etc/passwd and /etc/group.

use cri::{LinuxContainerSecurityContext, SupplementalGroupsPolicy};

/// The texts of the image's files; empty where it has none.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    pub passwd: String,
    pub group: String,
}

/// The identity of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Further groups, sorted, with `gid` among them.
    pub groups: Vec<u32>,
    /// From passwd, for HOME.
    pub home: Option<String>,
}

struct Account<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl Accounts {
    fn accounts(&self) -> impl Iterator<Item = Account<'_>> {
        self.passwd.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, gid, _, home, ..] = fields[..] else { return None };
            Some(Account { name, uid: uid.parse().ok()?, gid: gid.parse().ok()?, home })
        })
    }

    /// A user by name, or else by number, as chown does.
    fn user(&self, text: &str) -> Result<(u32, Option<Account<'_>>), String> {
        if let Some(account) = self.accounts().find(|account| account.name == text) {
            return Ok((account.uid, Some(account)));
        }
        let uid = text.parse().map_err(|_| format!("user {text:?} is not in the image's /etc/passwd"))?;
        Ok((uid, self.accounts().find(|account| account.uid == uid)))
    }

    fn group(&self, text: &str) -> Result<u32, String> {
        let named = self.group.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == text).then(|| fields.nth(1)?.parse().ok()).flatten()
        });
        named
            .or_else(|| text.parse().ok())
            .ok_or_else(|| format!("group {text:?} is not in the image's /etc/group"))
    }

    fn groups_of(&self, name: &str) -> Vec<u32> {
        let is_member = |members: &str| members.split(',').any(|member| member.trim() == name);
        self.group
            .lines()
            .filter_map(|line| {
                let fields: Vec<&str> = line.split(':').collect();
                let [_, _, gid, members, ..] = fields[..] else { return None };
                is_member(members).then(|| gid.parse().ok()).flatten()
            })
            .collect()
    }
}

/// The identity for a container: what the pod asks for, else what the image says, else root.
pub fn resolve(
    context: &LinuxContainerSecurityContext,
    image_user: &str,
    accounts: &Accounts,
) -> Result<Identity, String> {
    let id =
        |value: i64, what: &str| u32::try_from(value).map_err(|_| format!("{what} {value} is out of range"));
    let (user, group) = match (context.run_as_user, context.run_as_username.as_str()) {
        (Some(uid), _) => (id(uid, "user")?.to_string(), None),
        (None, "") => match image_user.split_once(':') {
            Some((user, group)) => (user.to_owned(), Some(group.to_owned())),
            None => (image_user.to_owned(), None),
        },
        (None, name) => (name.to_owned(), None),
    };
    let user = if user.is_empty() { "0".to_owned() } else { user };
    let (uid, account) = accounts.user(&user)?;
    let gid = match (context.run_as_group, group) {
        (Some(gid), _) => id(gid, "group")?,
        (None, Some(group)) => accounts.group(&group)?,
        (None, None) => account.as_ref().map_or(0, |account| account.gid),
    };
    let mut groups = vec![gid];
    for group in &context.supplemental_groups {
        groups.push(id(*group, "supplemental group")?);
    }
    if let (SupplementalGroupsPolicy::Merge, Some(account)) = (context.supplemental_groups_policy, &account) {
        groups.extend(accounts.groups_of(account.name));
    }
    groups.sort_unstable();
    groups.dedup();
    Ok(Identity { uid, gid, groups, home: account.map(|account| account.home.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0:root:/root:/bin/sh\nweb:x:101:102:Web:/srv:/bin/false\nbroken\n".into(),
            group: "root:x:0:\nlogs:x:4:web,other\nweb:x:102:\nshort\n".into(),
        }
    }

    fn resolved(
        image_user: &str,
        change: impl FnOnce(&mut LinuxContainerSecurityContext),
    ) -> Result<Identity, String> {
        let mut context = LinuxContainerSecurityContext::default();
        change(&mut context);
        resolve(&context, image_user, &accounts())
    }

    #[test]
    fn names_are_looked_up_in_the_image() {
        let web = resolved("web", |_| {}).unwrap();
        assert_eq!(
            (web.uid, web.gid, web.groups.as_slice(), web.home.as_deref()),
            (101, 102, &[4, 102][..], Some("/srv"))
        );
        assert_eq!(resolved("web:logs", |_| {}).unwrap().gid, 4);
        assert!(resolved("ghost", |_| {}).unwrap_err().contains("ghost"));
        assert!(resolved("web:ghosts", |_| {}).unwrap_err().contains("ghosts"));
    }

    #[test]
    fn the_pod_overrides_the_image() {
        let identity = resolved("web", |context| {
            context.run_as_user = Some(1000);
            context.run_as_group = Some(3000);
            context.supplemental_groups = vec![2000];
        })
        .unwrap();
        assert_eq!((identity.uid, identity.gid, identity.groups), (1000, 3000, vec![2000, 3000]));
        assert_eq!(resolved("", |context| context.run_as_username = "web".into()).unwrap().uid, 101);
        assert!(resolved("", |context| context.run_as_user = Some(-1)).is_err());
    }

    #[test]
    fn strict_groups_are_only_those_asked_for() {
        let identity = resolved("web", |context| {
            context.supplemental_groups_policy = SupplementalGroupsPolicy::Strict;
        })
        .unwrap();
        assert_eq!(identity.groups, [102]);
    }
}
