//! Trees of switches: which node sums whose contributions, and which ranks are where.
//!
//! A *node* is what a switch does for one job. Its members are its hosts and its child nodes, in
//! this order of local ranks. Global ranks are contiguous below each node: its hosts have the first
//! of them, and then each child's range follows.

/// Members of a node at most.
pub const MEMBERS_MAX: usize = 64;

/// A switch's part in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The node that its sums go to; `None` for the root.
    pub parent: Option<usize>,
    /// Its local rank there; 0 for the root.
    pub rank: u8,
    /// Workers at its own ports.
    pub hosts: u16,
    /// Its child nodes, in order of their local ranks.
    pub children: Vec<usize>,
    /// The first global rank below it.
    pub first: u16,
    /// Global ranks below it.
    pub count: u16,
}

impl Node {
    /// Hosts and children.
    #[must_use]
    pub fn members(&self) -> u8 {
        (usize::from(self.hosts) + self.children.len()) as u8
    }

    /// The bitmap of local ranks of its child nodes.
    #[must_use]
    pub fn switches(&self) -> u64 {
        let hosts = u32::from(self.hosts);
        self.children
            .iter()
            .enumerate()
            .fold(0, |all, (n, _)| all | 1 << (hosts + n as u32))
    }

    /// The global ranks below it.
    #[must_use]
    pub fn ranks(&self) -> std::ops::Range<u16> {
        self.first..self.first + self.count
    }
}

/// What a member of a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// The worker of this global rank.
    Host(u16),
    /// This node.
    Child(usize),
}

/// The nodes of a job; the first one is the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// By number, parents before their children.
    pub nodes: Vec<Node>,
}

impl Tree {
    /// The tree with these parents, which come before their children, and hosts of the nodes.
    ///
    /// # Panics
    /// If a node has no member or more than [`MEMBERS_MAX`], or a parent is not an earlier node.
    #[must_use]
    pub fn new(spec: &[(Option<usize>, u16)]) -> Self {
        let mut nodes: Vec<_> = spec
            .iter()
            .map(|&(parent, hosts)| Node {
                parent,
                rank: 0,
                hosts,
                children: Vec::new(),
                first: 0,
                count: hosts,
            })
            .collect();
        for n in 1..nodes.len() {
            let parent = nodes[n].parent.expect("one root, the first node");
            assert!(parent < n, "a node comes after its parent");
            nodes[n].rank = nodes[parent].members();
            nodes[parent].children.push(n);
        }
        for n in (1..nodes.len()).rev() {
            let count = nodes[n].count;
            if let Some(parent) = nodes[n].parent {
                nodes[parent].count += count;
            }
        }
        for n in 0..nodes.len() {
            let members = usize::from(nodes[n].hosts) + nodes[n].children.len();
            assert!((1..=MEMBERS_MAX).contains(&members), "{members} members");
            let mut first = nodes[n].first + nodes[n].hosts;
            for child in nodes[n].children.clone() {
                nodes[child].first = first;
                first += nodes[child].count;
            }
        }
        Self { nodes }
    }

    /// A switch alone.
    #[must_use]
    pub fn single(hosts: u16) -> Self {
        Self::new(&[(None, hosts)])
    }

    /// The tree in which each node of the lowest level has `fan_in` hosts, and each other one has
    /// that many children.
    #[must_use]
    pub fn regular(levels: u32, fan_in: u16) -> Self {
        let mut spec = vec![(None, 0)];
        let mut level = 0..1;
        for _ in 1..levels {
            let end = spec.len();
            for parent in level {
                spec.extend((0..fan_in).map(|_| (Some(parent), 0)));
            }
            level = end..spec.len();
        }
        for leaf in level {
            spec[leaf].1 = fan_in;
        }
        Self::new(&spec)
    }

    /// All workers.
    #[must_use]
    pub fn workers(&self) -> u16 {
        self.nodes[0].count
    }

    /// The node that a worker is at, and its local rank there.
    #[must_use]
    pub fn place(&self, rank: u16) -> (usize, u8) {
        let is_at = |node: &Node| (node.first..node.first + node.hosts).contains(&rank);
        let node = self.nodes.iter().position(is_at).unwrap_or(0);
        (node, (rank - self.nodes[node].first) as u8)
    }

    /// What has this local rank at a node.
    #[must_use]
    pub fn member(&self, node: usize, local: u8) -> Option<Member> {
        let node = &self.nodes[node];
        let local = u16::from(local);
        if local < node.hosts {
            return Some(Member::Host(node.first + local));
        }
        let child = node.children.get(usize::from(local - node.hosts))?;
        Some(Member::Child(*child))
    }

    /// A node and all below it, in order.
    #[must_use]
    pub fn below(&self, node: usize) -> Vec<usize> {
        let mut below = vec![node];
        for n in node + 1..self.nodes.len() {
            if self.nodes[n].parent.is_some_and(|of| below.contains(&of)) {
                below.push(n);
            }
        }
        below
    }

    /// Levels of nodes.
    #[must_use]
    pub fn levels(&self) -> usize {
        let above = |n: usize| std::iter::successors(Some(n), |&n| self.nodes[n].parent).count();
        (0..self.nodes.len()).map(above).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_below_a_node_are_contiguous_hosts_first() {
        let tree = Tree::new(&[
            (None, 2),
            (Some(0), 0),
            (Some(1), 3),
            (Some(1), 1),
            (Some(0), 4),
        ]);
        assert_eq!(tree.workers(), 10);
        let ranges: Vec<_> = tree.nodes.iter().map(Node::ranks).collect();
        assert_eq!(ranges, [0..10, 2..6, 2..5, 5..6, 6..10]);
        let ranks: Vec<_> = tree.nodes.iter().map(|node| node.rank).collect();
        assert_eq!(ranks, [0, 2, 0, 1, 3]);
        assert_eq!(tree.nodes[0].switches(), 0b1100);
        assert_eq!(tree.place(5), (3, 0));
        assert_eq!(tree.place(9), (4, 3));
        assert_eq!(tree.member(0, 1), Some(Member::Host(1)));
        assert_eq!(tree.member(0, 3), Some(Member::Child(4)));
        assert_eq!(tree.member(0, 4), None);
        assert_eq!((tree.below(1), tree.levels()), (vec![1, 2, 3], 3));
        for rank in 0..10 {
            let (node, local) = tree.place(rank);
            assert_eq!(tree.member(node, local), Some(Member::Host(rank)));
        }
    }

    #[test]
    fn a_regular_tree_has_the_fan_in_at_each_node() {
        let tree = Tree::regular(3, 16);
        assert_eq!((tree.workers(), tree.nodes.len()), (4096, 273));
        assert!(tree.nodes.iter().all(|node| node.members() == 16));
        assert_eq!(Tree::single(5), Tree::regular(1, 5));
    }
}
