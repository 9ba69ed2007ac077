//! Tokens, and the table of slots that they name.
//!
//! A slot has two counters. The *generation* is part of the user's token and changes when the slot is freed, so a token
//! that outlives its slot is harmless. The *sequence* is part of the kernel's user data and changes at each arming, so
//! a completion of an earlier arming is recognised.

use std::fmt;

/// Names a watch or an operation of a driver: the index and the generation of its slot.
///
/// The order of tokens has no meaning. It lets them be keys of an ordered map.
#[derive(Clone, Copy, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Token(u64);

impl Token {
    pub(crate) const fn new(index: u32, generation: u32) -> Token {
        Token((generation as u64) << 32 | index as u64)
    }

    /// The slot's index. Indices are small and dense, so users can keep a vector by them. The next owner of the slot
    /// has the same index, but another token.
    pub const fn index(self) -> u32 {
        self.0 as u32
    }

    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Token({}#{})", self.index(), self.generation())
    }
}

struct Slot<T> {
    generation: u32,
    sequence: u32,
    value: Option<T>,
}

/// A growing table of `T`s named by tokens.
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(crate) fn with_capacity(capacity: usize) -> Slots<T> {
        Slots {
            slots: Vec::with_capacity(capacity),
            free: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> Token {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Token::new(index, slot.generation);
        }
        // The largest index is not used for slots: the driver's own requests have it.
        let index = self.slots.len() as u32;
        assert!(
            index < u32::MAX,
            "four billion watches and operations at once"
        );
        self.slots.push(Slot {
            generation: 0,
            sequence: 0,
            value: Some(value),
        });
        Token::new(index, 0)
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<T> {
        let slot = self.slots.get_mut(token.index() as usize)?;
        if slot.generation != token.generation() {
            return None;
        }
        let value = slot.value.take()?;
        slot.sequence = slot.sequence.wrapping_add(1);
        // A slot that has used all generations is not used again, so that no old token becomes valid again.
        if let Some(generation) = slot.generation.checked_add(1) {
            slot.generation = generation;
            self.free.push(token.index());
        }
        Some(value)
    }

    pub(crate) fn get(&self, token: Token) -> Option<&T> {
        let slot = self.slots.get(token.index() as usize)?;
        if slot.generation != token.generation() {
            return None;
        }
        slot.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        let slot = self.slots.get_mut(token.index() as usize)?;
        if slot.generation != token.generation() {
            return None;
        }
        slot.value.as_mut()
    }

    /// The current token of a slot, if any.
    pub(crate) fn token_at(&self, index: u32) -> Option<Token> {
        let slot = self.slots.get(index as usize)?;
        slot.value
            .as_ref()
            .map(|_| Token::new(index, slot.generation))
    }

    /// Begins a new arming of the slot and returns its user data.
    pub(crate) fn next_sequence(&mut self, token: Token) -> u64 {
        let slot = &mut self.slots[token.index() as usize];
        slot.sequence = slot.sequence.wrapping_add(1);
        u64::from(slot.sequence) << 32 | u64::from(token.index())
    }

    /// The user data of the slot's latest arming.
    pub(crate) fn user_data(&self, token: Token) -> u64 {
        u64::from(self.slots[token.index() as usize].sequence) << 32 | u64::from(token.index())
    }

    /// The owner of the arming with this user data. `None` if that arming is over.
    pub(crate) fn by_user_data(&mut self, user_data: u64) -> Option<(Token, &mut T)> {
        let index = user_data as u32;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.sequence != (user_data >> 32) as u32 {
            return None;
        }
        let token = Token::new(index, slot.generation);
        slot.value.as_mut().map(|value| (token, value))
    }

    /// The owner of a slot.
    pub(crate) fn by_index(&mut self, index: u32) -> Option<(Token, &mut T)> {
        let slot = self.slots.get_mut(index as usize)?;
        let token = Token::new(index, slot.generation);
        slot.value.as_mut().map(|value| (token, value))
    }

    /// The values of all live tokens.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// All live tokens, in the order of their slots.
    pub(crate) fn tokens(&self) -> Vec<Token> {
        (0..self.slots.len() as u32)
            .filter_map(|index| self.token_at(index))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[derive(Clone, Debug)]
    enum Step {
        Insert,
        Remove(usize),
        Arm(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Insert),
            any::<usize>().prop_map(Step::Remove),
            any::<usize>().prop_map(Step::Arm)
        ]
    }

    proptest! {
        /// In any order of insertions, removals and armings, a live token finds its own value, a dead one finds
        /// nothing, and only the latest arming of a slot is found.
        #[test]
        fn tokens_and_armings_never_come_back(steps in proptest::collection::vec(step(), 1..200)) {
            let mut slots = Slots::with_capacity(0);
            let mut live: Vec<(Token, usize)> = Vec::new();
            let mut dead: Vec<Token> = Vec::new();
            let mut armed: HashMap<u64, Token> = HashMap::new();
            let mut disarmed: Vec<u64> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert => live.push((slots.insert(number), number)),
                    Step::Remove(choice) if !live.is_empty() => {
                        let (token, value) = live.swap_remove(choice % live.len());
                        prop_assert_eq!(slots.remove(token), Some(value));
                        dead.push(token);
                        armed.retain(|user_data, owner| {
                            let keep = *owner != token;
                            if !keep { disarmed.push(*user_data); }
                            keep
                        });
                    }
                    Step::Arm(choice) if !live.is_empty() => {
                        let (token, _) = live[choice % live.len()];
                        armed.retain(|user_data, owner| {
                            let keep = *owner != token;
                            if !keep { disarmed.push(*user_data); }
                            keep
                        });
                        armed.insert(slots.next_sequence(token), token);
                    }
                    Step::Remove(_) | Step::Arm(_) => {}
                }
                for (token, value) in &live {
                    prop_assert_eq!(slots.get(*token), Some(value));
                    prop_assert_eq!(slots.token_at(token.index()), Some(*token));
                }
                for token in &dead {
                    prop_assert_eq!(slots.get(*token), None);
                    prop_assert_eq!(slots.remove(*token), None);
                }
                for (user_data, token) in &armed {
                    prop_assert_eq!(slots.by_user_data(*user_data).map(|(token, _)| token), Some(*token));
                }
                for user_data in &disarmed {
                    prop_assert!(slots.by_user_data(*user_data).is_none());
                }
                prop_assert_eq!(slots.tokens().len(), live.len());
            }
        }
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_retired() {
        let mut slots = Slots::with_capacity(0);
        let token = slots.insert('a');
        slots.slots[0].generation = u32::MAX;
        assert_eq!(slots.remove(token), None);
        assert_eq!(slots.remove(Token::new(0, u32::MAX)), Some('a'));
        assert_eq!(slots.insert('b').index(), 1);
        assert_eq!(slots.get(Token::new(0, u32::MAX)), None);
    }
}
