//! What the connecting side of a handshake says first: what the connection is for.
//!
//! A worker has one address for everything. A connection of a view's group begins with that group's
//! [`Hello`]; one between two members, or from a worker that wants to come, with a [`MemberHello`].
//! Such a connection carries messages about views for as long as both live, whatever becomes of
//! the groups.

use serde::{Deserialize, Serialize};

use super::membership::MemberId;
use super::message::Hello;

/// The first frame of a handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Greeting {
    Group(Hello),
    Member(MemberHello),
}

/// Who a member is, or a worker that wants to become one, and what its run is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberHello {
    pub id: MemberId,
    /// Names the run; a worker that wants to come does not know it yet.
    pub run_id: Option<String>,
    /// Everything that decides the result, by name: the configuration and the data set.
    pub terms: Vec<(String, String)>,
}

/// The answer to a [`MemberHello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberAnswer {
    Welcome {
        hello: MemberHello,
        /// The address at which the connecting side is seen.
        seen_at: String,
    },
    /// The [`MemberMismatch`] as text.
    Refuse(String),
}

/// The first thing in which a worker that connects does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberMismatch {
    #[error("run id differs: {them} has {theirs:?}, {us} has {ours:?}; it belongs to another run")]
    RunId { us: MemberId, ours: String, them: MemberId, theirs: String },
    #[error(
        "{name} differs: {them} has {theirs}, {us} has {ours}; give every worker the same \
         configuration and the same data set"
    )]
    Term { name: String, us: MemberId, ours: String, them: MemberId, theirs: String },
    #[error("{id} is there already; give every worker its own rank")]
    Taken { id: MemberId },
}

impl MemberHello {
    /// Checks that the worker that connects belongs to the same run, or may come to it.
    pub fn check(&self, theirs: &MemberHello) -> Result<(), MemberMismatch> {
        let (us, them) = (self.id, theirs.id);
        if us == them {
            return Err(MemberMismatch::Taken { id: us });
        }
        if let (Some(ours), Some(theirs)) = (&self.run_id, &theirs.run_id)
            && ours != theirs
        {
            let (ours, theirs) = (ours.clone(), theirs.clone());
            return Err(MemberMismatch::RunId { us, ours, them, theirs });
        }
        let value_of = |hello: &MemberHello, name: &String| {
            let found = hello.terms.iter().find(|(known, _)| known == name);
            found.map_or_else(|| "nothing".to_owned(), |(_, value)| value.clone())
        };
        let names = self.terms.iter().chain(&theirs.terms).map(|(name, _)| name);
        for name in names {
            let (ours, theirs) = (value_of(self, name), value_of(theirs, name));
            if ours != theirs {
                return Err(MemberMismatch::Term { name: name.clone(), us, ours, them, theirs });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(id: u64, run_id: Option<&str>, terms: &[(&str, &str)]) -> MemberHello {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        MemberHello {
            id: MemberId(id),
            run_id: run_id.map(str::to_owned),
            terms: terms.iter().map(owned).collect(),
        }
    }

    #[test]
    fn the_first_difference_is_named() {
        let ours = hello(0, Some("fox"), &[("batch", "64"), ("lr", "0.1")]);
        let same = [("batch", "64"), ("lr", "0.1")];
        ours.check(&hello(7, None, &same)).expect("a worker that wants to come");
        ours.check(&hello(1, Some("fox"), &same)).expect("another member");
        let told = |theirs: MemberHello| ours.check(&theirs).expect_err("differs").to_string();
        let text = told(hello(7, None, &[("batch", "64"), ("lr", "0.2")]));
        assert!(text.starts_with("lr differs: worker 7 has 0.2, worker 0 has 0.1"), "{text}");
        let text = told(hello(7, None, &[("batch", "64"), ("lr", "0.1"), ("wire", "i16")]));
        assert!(text.starts_with("wire differs: worker 7 has i16, worker 0 has nothing"), "{text}");
        let text = told(hello(7, Some("owl"), &same));
        assert!(text.starts_with("run id differs: worker 7 has \"owl\""), "{text}");
        assert!(told(hello(0, Some("fox"), &same)).contains("worker 0 is there already"));
    }
}
