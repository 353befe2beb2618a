//! A worker's side of a run: its contributions, and what is checked where results come in.

use super::findings::{Checker, Findings};
use super::options::JobOptions;
use crate::host::Data;
use crate::oracle::{Contributions, Sums, TreeSums};
use crate::tree::Tree;
use std::cell::RefCell;
use std::rc::Rc;
use tally_endpoint::{Contribution, Delivery, Gradients};
use tally_wire::{Element, UNIT_BYTES};

/// What all workers of one incarnation have in common.
pub struct Facts {
    /// Place of the job in the options.
    pub job: usize,
    /// Number of the incarnation, over all jobs.
    pub number: usize,
    /// What the job does.
    pub options: JobOptions,
    /// What its workers contribute.
    pub contributions: Contributions,
    /// W-2: the window that the switch lets them have.
    pub window: u64,
    /// The fragment in which integers overflow.
    pub overflow: Option<u64>,
    /// The node where they do, if it is one alone: all other sums fit.
    overflow_node: Option<usize>,
    sums: RefCell<Sums>,
    /// The sums of each node, if the job has a tree.
    pub tree: Option<TreeSums>,
}

impl Facts {
    /// An incarnation whose contributions come from `salt`.
    #[must_use]
    pub fn new(
        job: usize,
        number: usize,
        options: &JobOptions,
        salt: u64,
        switch_window: u16,
    ) -> Self {
        let contributions = Contributions {
            salt,
            workers: options.workers,
            infinite_ppm: options.infinite_ppm,
        };
        let payload_bytes = usize::from(options.units) * UNIT_BYTES;
        let span = 4 * usize::from(options.window);
        Self {
            job,
            number,
            contributions,
            window: u64::from(options.window.min(switch_window)),
            overflow: options.overflow.filter(|_| number == job),
            overflow_node: None,
            sums: RefCell::new(Sums::new(contributions, payload_bytes, span)),
            options: options.clone(),
            tree: None,
        }
    }

    /// The same of a job whose sums are folded by this tree.
    #[must_use]
    pub fn with_tree(self, tree: Rc<Tree>) -> Self {
        let payload_bytes = usize::from(self.options.units) * UNIT_BYTES;
        let mut nodes = tree.nodes.iter();
        let node = nodes.rposition(|node| node.parent.is_some() && node.hosts > 1);
        let tree = TreeSums::new(self.contributions, tree, payload_bytes);
        Self {
            overflow_node: node.filter(|_| self.contributions.salt & 1 == 0),
            tree: Some(tree),
            ..self
        }
    }

    /// Writes `rank`'s contribution to fragment `seq`.
    pub fn write(&self, rank: u8, seq: u64, payload: &mut [u8]) {
        if self.overflow == Some(seq) {
            let element = self.options.element(seq);
            let overflows = self.overflow_node.is_none_or(|node| {
                let tree = self.tree.as_ref().map(TreeSums::tree);
                tree.is_some_and(|tree| tree.place(rank.into()).0 == node)
            });
            for out in payload.chunks_exact_mut(element.bytes()) {
                // The largest there is, big-endian.
                out.fill(if overflows { 0xff } else { 0 });
                out[0] &= 0x7f;
            }
        } else {
            let element = self.options.element(seq);
            match &self.tree {
                Some(tree) => tree.write(rank.into(), seq, element, payload),
                None => self.contributions.write(rank, seq, element, payload),
            }
        }
    }

    /// Whether `payload` is the sum of all contributions to `seq`.
    #[must_use]
    pub fn is_sum(&self, seq: u64, payload: &[u8]) -> bool {
        let element = self.options.element(seq);
        match &self.tree {
            Some(tree) => *tree.sum(0, seq, element) == *payload,
            None => self.sums.borrow_mut().sum(seq, element) == payload,
        }
    }

    /// Whether `payload` is the sum of the contributions of `bitmap` to `seq`.
    #[must_use]
    pub fn is_partial(&self, seq: u64, bitmap: u64, payload: &[u8]) -> bool {
        let mut expected = vec![0; payload.len()];
        let element = self.options.element(seq);
        self.contributions
            .write_partial(seq, element, bitmap, &mut expected);
        self.contributions.may_be_partial(element, bitmap) && expected == payload
    }

    /// The fragment that a frame's number means, which is one of this incarnation.
    #[must_use]
    pub fn seq_of(&self, fragment: u32) -> Option<u64> {
        let first = self.options.first;
        let n = u64::from(fragment.wrapping_sub(first as u32));
        (n < self.options.fragments()).then(|| first + n)
    }
}

struct CachedResult {
    /// The fragment plus one; 0 for none.
    seq: u64,
    element: Element,
    payload: Box<[u8]>,
}

/// One worker's data.
pub struct Contributor {
    rank: u8,
    facts: Rc<Facts>,
    findings: Findings,
    /// One past the last fragment that was contributed to.
    asked: u64,
    /// All fragments before it have their results.
    base: u64,
    /// Results that came.
    pub results: u64,
    kept: Box<[CachedResult]>,
    said: bool,
}

impl Contributor {
    /// Nothing done yet.
    #[must_use]
    pub fn new(rank: u8, facts: Rc<Facts>, findings: Findings) -> Self {
        // Two windows back, and one ahead.
        let slots = (4 * usize::from(facts.options.window)).next_power_of_two();
        let kept = || CachedResult {
            seq: 0,
            element: Element::None,
            payload: Box::default(),
        };
        Self {
            rank,
            asked: facts.options.first,
            base: facts.options.first,
            results: 0,
            kept: (0..slots).map(|_| kept()).collect(),
            said: false,
            facts,
            findings,
        }
    }

    fn kept(&self, seq: u64) -> &CachedResult {
        &self.kept[seq as usize & (self.kept.len() - 1)]
    }

    fn has(&self, seq: u64) -> bool {
        seq < self.base || self.kept(seq).seq == seq + 1
    }

    fn who(&self, seq: u64) -> String {
        let Facts { job, number, .. } = *self.facts;
        format!(
            "job {job}, incarnation {number}, rank {}, fragment {seq}",
            self.rank
        )
    }
}

impl Gradients for Contributor {
    fn contribute(&mut self, seq: u64, payload: &mut [u8]) -> Contribution {
        let findings = &self.findings;
        let options = &self.facts.options;
        findings.require(seq <= self.asked, Checker::Window, || {
            format!("{}: out of order, {} comes next", self.who(seq), self.asked)
        });
        findings.require(seq < self.base + self.facts.window, Checker::Window, || {
            let (window, base) = (self.facts.window, self.base);
            format!(
                "{}: sent with {base} missing and a window of {window}",
                self.who(seq)
            )
        });
        findings.require(
            seq < options.first + options.fragments(),
            Checker::Window,
            || format!("{}: was never submitted", self.who(seq)),
        );
        findings.require(!self.has(seq), Checker::Payload, || {
            format!("{}: sent again after its result", self.who(seq))
        });
        if let Some(needed) = options.depends.and_then(|d| seq.checked_sub(d))
            && needed >= options.first
            && seq == self.asked
            && !self.has(needed)
        {
            return Contribution::NotReady;
        }
        self.asked = self.asked.max(seq + 1);
        self.facts.write(self.rank, seq, payload);
        Contribution::Ready(options.element(seq))
    }

    fn result(&mut self, seq: u64, element: Element, payload: &[u8], _: Delivery) {
        let findings = &self.findings;
        findings.require(!self.has(seq), Checker::Once, || {
            format!("{}: delivered twice", self.who(seq))
        });
        findings.require(seq < self.asked, Checker::Once, || {
            format!(
                "{}: delivered without having been contributed to",
                self.who(seq)
            )
        });
        let right = self.facts.overflow != Some(seq)
            && element == self.facts.options.element(seq)
            && self.facts.is_sum(seq, payload);
        findings.require(right, Checker::ExactSum, || {
            format!("{}: {element:?} delivered {payload:02x?}", self.who(seq))
        });
        self.results += 1;
        let slot = seq as usize & (self.kept.len() - 1);
        self.kept[slot] = CachedResult {
            seq: seq + 1,
            element,
            payload: payload.into(),
        };
        while self.kept(self.base).seq == self.base + 1 {
            self.base += 1;
        }
    }

    fn stored_result(&mut self, seq: u64, payload: &mut [u8]) -> Option<Element> {
        let kept = self.kept(seq);
        if kept.seq != seq + 1 {
            return None;
        }
        payload.copy_from_slice(&kept.payload);
        Some(kept.element)
    }
}

impl Data for Contributor {
    fn has_news(&mut self) -> bool {
        let news = self.findings.any() && !self.said;
        self.said |= news;
        news
    }
}
