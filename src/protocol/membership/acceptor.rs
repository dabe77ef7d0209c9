//! The acceptor of single-decree Paxos: what makes the successor of a view unique.

use super::message::Ballot;
use super::view::View;

/// One acceptor's memory for one view's successor. It lives as long as the process: a process that
/// is started again is a new member, so nothing needs to be on disk.
#[derive(Clone, Debug, Default)]
pub struct Acceptor {
    promised: Option<Ballot>,
    accepted: Option<(Ballot, Box<View>)>,
}

impl Acceptor {
    /// The highest ballot that was promised.
    pub fn promised(&self) -> Option<Ballot> {
        self.promised
    }

    /// The successor that was accepted with the highest ballot so far.
    pub fn accepted(&self) -> Option<&(Ballot, Box<View>)> {
        self.accepted.as_ref()
    }

    /// Promises to heed no lower ballot.
    ///
    /// # Errors
    /// If a higher ballot was promised: that ballot.
    pub fn prepare(&mut self, ballot: Ballot) -> Result<(), Ballot> {
        match self.promised {
            Some(promised) if promised > ballot => Err(promised),
            _ => {
                self.promised = Some(ballot);
                Ok(())
            }
        }
    }

    /// Accepts a successor.
    ///
    /// # Errors
    /// If a higher ballot was promised: that ballot.
    pub fn accept(&mut self, ballot: Ballot, view: Box<View>) -> Result<(), Ballot> {
        self.prepare(ballot)?;
        self.accepted = Some((ballot, view));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::membership::view::{Member, MemberId};

    #[test]
    fn a_promise_shuts_lower_ballots_out() {
        let ballot = |round, id| Ballot { round, proposer: MemberId(id) };
        let member = Member { id: MemberId(0), addresses: Vec::new() };
        let view = |start_step| Box::new(View::first(vec![member.clone()], start_step));
        let mut acceptor = Acceptor::default();
        acceptor.prepare(ballot(2, 1)).expect("the first");
        assert_eq!(acceptor.prepare(ballot(2, 0)), Err(ballot(2, 1)));
        assert_eq!(acceptor.accept(ballot(1, 9), view(1)), Err(ballot(2, 1)));
        assert_eq!(acceptor.accepted(), None);
        acceptor.accept(ballot(2, 1), view(2)).expect("the promised one");
        acceptor.prepare(ballot(3, 0)).expect("a higher one");
        assert_eq!(acceptor.accepted(), Some(&(ballot(2, 1), view(2))));
        assert_eq!(acceptor.accept(ballot(2, 1), view(3)), Err(ballot(3, 0)));
    }
}
