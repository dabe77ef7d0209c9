//! Which view follows: a pure function of what is known about a view's members.

use std::collections::BTreeMap;

use super::view::{Change, ChangeKind, Member, MemberId, View};

/// What a proposer knows when it decides.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    pub view: &'a View,
    /// The members that have stopped working and said what they hold: steps completed, or nothing.
    pub answered: &'a BTreeMap<MemberId, Option<u64>>,
    /// Why a member is taken for lost. Such a member does not stay, whether it answered or not.
    pub lost: &'a BTreeMap<MemberId, String>,
    /// Why a member leaves as planned.
    pub leaving: &'a BTreeMap<MemberId, String>,
    /// Who wants to come, in the order in which they are taken.
    pub joiners: &'a BTreeMap<MemberId, Member>,
    pub members_min: usize,
    pub members_max: usize,
}

/// No view can follow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSuccessor {
    #[error("{left} workers would be left, fewer than --min-workers {least}")]
    TooFew { left: usize, least: usize },
    #[error("all workers that are left were asked to leave")]
    AllLeave,
    #[error("none of the workers that are left holds the trained state")]
    NoState,
}

/// The view that follows. Members keep their order, joiners come behind them; the most advanced
/// member's state is everybody's, and of several such members the lowest rank hands it out. The
/// [`changes`](View::changes) say who left and came, and why.
///
/// # Errors
/// If too few are left, or nobody who has a state.
pub fn successor(facts: &Facts<'_>) -> Result<View, NoSuccessor> {
    let (mut members, mut changes) = (Vec::new(), Vec::new());
    for member in &facts.view.members {
        let id = member.id;
        let why = if let Some(why) = facts.lost.get(&id) {
            why.clone()
        } else if let Some(why) = facts.leaving.get(&id) {
            why.clone()
        } else if !facts.answered.contains_key(&id) {
            "it did not answer".to_owned()
        } else {
            members.push(member.clone());
            continue;
        };
        changes.push(Change { id, kind: ChangeKind::Left, why });
    }
    if members.is_empty() && !facts.leaving.is_empty() {
        return Err(NoSuccessor::AllLeave);
    }
    let step_of = |id: MemberId| facts.answered.get(&id).copied().flatten();
    let start_step =
        members.iter().filter_map(|member| step_of(member.id)).max().ok_or(NoSuccessor::NoState)?;
    let source = members.iter().find(|member| step_of(member.id) == Some(start_step));
    let source = source.expect("one of them has the maximum").id;
    for (&id, member) in facts.joiners {
        if members.len() >= facts.members_max {
            break;
        }
        if !facts.view.contains(id) {
            members.push(member.clone());
            let from = member.addresses.join(" or ");
            let from = if from.is_empty() { from } else { format!(" from {from}") };
            let why = format!("it asked to join{from}");
            changes.push(Change { id, kind: ChangeKind::Came, why });
        }
    }
    if members.len() < facts.members_min {
        return Err(NoSuccessor::TooFew { left: members.len(), least: facts.members_min });
    }
    let ids = members.iter().map(|member| member.id);
    let behind = ids.filter(|&id| step_of(id) != Some(start_step)).collect();
    let generation = facts.view.generation + 1;
    Ok(View { generation, members, start_step, source, behind, changes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64) -> Member {
        Member { id: MemberId(id), addresses: vec![format!("10.0.0.{id}:4400")] }
    }

    fn reasons(ids: &[u64], why: &str) -> BTreeMap<MemberId, String> {
        ids.iter().map(|&id| (MemberId(id), why.to_owned())).collect()
    }

    /// The decision about members 0 to 3 of generation 4, who want at least two workers.
    fn decide(
        answered: &[(u64, Option<u64>)],
        lost: &[u64],
        leaving: &[u64],
        joiners: &[u64],
    ) -> Result<View, NoSuccessor> {
        let mut view = View::first((0..4).map(member).collect(), 10);
        view.generation = 4;
        successor(&Facts {
            view: &view,
            answered: &answered.iter().map(|&(id, step)| (MemberId(id), step)).collect(),
            lost: &reasons(lost, "its connection closed"),
            leaving: &reasons(leaving, "it was asked to"),
            joiners: &joiners.iter().map(|&id| (MemberId(id), member(id))).collect(),
            members_min: 2,
            members_max: 5,
        })
    }

    fn ids(view: &View) -> Vec<u64> {
        view.ids().map(|MemberId(id)| id).collect()
    }

    #[test]
    fn the_most_advanced_state_is_everybodys() {
        let answered = [(0, Some(12)), (1, Some(13)), (2, Some(13)), (3, None)];
        let view = decide(&answered, &[], &[], &[]).expect("all are there");
        assert_eq!((view.generation, view.start_step, view.source), (5, 13, MemberId(1)));
        assert_eq!(view.behind, [MemberId(0), MemberId(3)]);
        assert_eq!(view.changes, []);
    }

    #[test]
    fn each_change_has_its_reason() {
        let answered = [(0, Some(12)), (1, Some(13)), (2, Some(12))];
        let view = decide(&answered, &[1], &[2], &[7, 9]).expect("enough are left");
        // The lost one's step is redone.
        assert_eq!((ids(&view), view.start_step), (vec![0, 7, 9], 12));
        assert_eq!(view.behind, [MemberId(7), MemberId(9)]);
        assert_eq!(
            view.to_string(),
            "generation 5: 3 workers from step 12; worker 1 left (its connection closed), \
             worker 2 left (it was asked to), worker 3 left (it did not answer), \
             worker 7 came (it asked to join from 10.0.0.7:4400), \
             worker 9 came (it asked to join from 10.0.0.9:4400)"
        );
    }

    #[test]
    fn no_more_come_than_there_is_room_for() {
        let answered: Vec<_> = (0..4).map(|id| (id, Some(10))).collect();
        let view = decide(&answered, &[], &[], &[5, 6, 7]).expect("all are there");
        assert_eq!(ids(&view), [0, 1, 2, 3, 5]);
    }

    #[test]
    fn too_few_or_nobody_with_a_state_is_no_view() {
        let alone = decide(&[(3, Some(10))], &[0], &[], &[]);
        assert_eq!(alone, Err(NoSuccessor::TooFew { left: 1, least: 2 }));
        let empty = decide(&[(1, None), (2, None)], &[0], &[], &[8]);
        assert_eq!(empty, Err(NoSuccessor::NoState));
        let answered = [(2, Some(10)), (3, Some(10))];
        let all_leave = decide(&answered, &[0, 1], &[2, 3], &[8]);
        assert_eq!(all_leave, Err(NoSuccessor::AllLeave));
    }
}
