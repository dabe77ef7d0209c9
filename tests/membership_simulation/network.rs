//! Links between nodes: delayed, cut, healed, broken.

use std::collections::{BTreeMap, BTreeSet};

/// What two nodes have between them. Order within a link is kept, but for what a partition holds up.
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// How often the connection was lost: what was sent on an earlier one does not arrive.
    pub epoch: u32,
    /// How many partitions lie between the two.
    pub cuts: u32,
    /// When the last message arrives, in each direction.
    pub last_arrival: [std::time::Duration; 2],
}

/// All links. Nodes that never spoke have one without history.
#[derive(Default)]
pub struct Network {
    links: BTreeMap<(usize, usize), Link>,
    /// Partitions under way: each parts its nodes from all others.
    partitions: BTreeMap<usize, BTreeSet<usize>>,
}

fn key(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Network {
    pub fn link(&mut self, a: usize, b: usize) -> &mut Link {
        let cuts = self.partitions.values().filter(|set| set.contains(&a) != set.contains(&b));
        let cuts = cuts.count() as u32;
        self.links.entry(key(a, b)).or_insert_with(|| Link { cuts, ..Link::default() })
    }

    pub fn is_cut(&mut self, a: usize, b: usize) -> bool {
        self.link(a, b).cuts > 0
    }

    /// Parts these nodes from all others; returns the pairs of which each is now parted.
    pub fn part(&mut self, id: usize, set: BTreeSet<usize>, nodes: usize) -> Vec<(usize, usize)> {
        let pairs = pairs_across(&set, nodes);
        for &(a, b) in &pairs {
            self.link(a, b).cuts += 1;
        }
        self.partitions.insert(id, set);
        pairs
    }

    /// Ends a partition.
    pub fn heal(&mut self, id: usize) {
        let set = self.partitions.remove(&id).expect("it is under way");
        for (&(a, b), link) in &mut self.links {
            if set.contains(&a) != set.contains(&b) {
                link.cuts -= 1;
            }
        }
    }
}

fn pairs_across(set: &BTreeSet<usize>, nodes: usize) -> Vec<(usize, usize)> {
    let all = (0..nodes).flat_map(|a| (a + 1..nodes).map(move |b| (a, b)));
    all.filter(|(a, b)| set.contains(a) != set.contains(b)).collect()
}
