//! What can be done with a resource.

/// What can be done with a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
#[allow(missing_docs)]
pub enum Verb {
    Create = 1,
    Delete = 2,
    DeleteCollection = 4,
    Get = 8,
    List = 16,
    Patch = 32,
    Update = 64,
    Watch = 128,
}

impl Verb {
    /// All verbs, in discovery's order.
    pub const ALL: [Verb; 8] = [
        Verb::Create,
        Verb::Delete,
        Verb::DeleteCollection,
        Verb::Get,
        Verb::List,
        Verb::Patch,
        Verb::Update,
        Verb::Watch,
    ];

    /// RBAC's and discovery's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Create => "create",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Patch => "patch",
            Verb::Update => "update",
            Verb::Watch => "watch",
        }
    }
}

/// A set of verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verbs(u16);

impl Verbs {
    /// Everything that a stored resource can do.
    pub const ALL: Verbs = Verbs(255);
    /// Only create: reviews and token requests.
    pub const CREATE: Verbs = Verbs(Verb::Create as u16);
    /// Get, update and patch: status and other views.
    pub const VIEW: Verbs = Verbs(Verb::Get as u16 | Verb::Patch as u16 | Verb::Update as u16);
    /// Only get.
    pub const GET: Verbs = Verbs(Verb::Get as u16);
    /// Get and list.
    pub const READ: Verbs = Verbs(Verb::Get as u16 | Verb::List as u16);

    /// Whether a verb is among them.
    pub fn contains(self, verb: Verb) -> bool {
        self.0 & verb as u16 != 0
    }

    /// A set of these.
    pub const fn of(verbs: &[Verb]) -> Verbs {
        let mut bits = 0;
        let mut at = 0;
        while at < verbs.len() {
            bits |= verbs[at] as u16;
            at += 1;
        }
        Verbs(bits)
    }

    /// The words, in discovery's order.
    pub fn words(self) -> Vec<&'static str> {
        Verb::ALL.into_iter().filter(|verb| self.contains(*verb)).map(Verb::as_str).collect()
    }
}
