//! The OpenFlow action set of a packet, which accompanies the packet from table to table. (OpenFlow 1.3.5, section
//! 5.10.)

use super::key::Field;
use super::step;

/// The index of each kind of action in an action set. The actions are executed in the order of these indices.
const POP: usize = 0;
const PUSH: usize = 1;
const HOPS: usize = 2;
const FIELDS: usize = 3;
const QUEUE: usize = FIELDS + Field::ALL.len();
const GROUP: usize = QUEUE + 1;
const OUTPUT: usize = GROUP + 1;
const PLACES: usize = OUTPUT + 1;

/// An action set: at most one action of each kind, encoded as steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct ActionSet {
    /// The step at each position of the action set; 0 for none.
    steps: [u64; PLACES],
    /// The two words that follow each step that sets an IP address.
    addresses: [[u64; 2]; 2],
}

impl ActionSet {
    pub const EMPTY: Self = Self {
        steps: [0; PLACES],
        addresses: [[0; 2]; 2],
    };

    /// Writes an action into the set, where it replaces an earlier action of the same kind. `rest` has the words after
    /// the action's step.
    pub fn write(&mut self, word: u64, rest: &mut impl Iterator<Item = u64>) {
        let word = word & !step::WRITTEN;
        let place = match word & step::KIND {
            step::POP_VLAN => POP,
            step::PUSH_VLAN => PUSH,
            step::DECREMENT_TTL => HOPS,
            step::QUEUE => QUEUE,
            step::GROUP => GROUP,
            step::SET => {
                let field = step::field(word);
                if step::is_long(word) {
                    let words = [rest.next().unwrap_or(0), rest.next().unwrap_or(0)];
                    self.addresses[usize::from(field == Some(Field::Destination))] = words;
                }
                let all = Field::ALL.iter();
                FIELDS + all.take_while(|it| Some(**it) != field).count()
            }
            _ => OUTPUT,
        };
        if let Some(own) = self.steps.get_mut(place) {
            *own = word;
        }
    }

    /// Returns the steps of the action set in order of execution. A group precedes an output.
    pub fn steps(&self) -> impl Iterator<Item = u64> + use<> {
        let Self {
            mut steps,
            addresses,
        } = *self;
        if steps[GROUP] != 0 {
            steps[OUTPUT] = 0;
        }
        let steps = steps.into_iter().filter(|word| *word != 0);
        steps.flat_map(move |word| {
            let is_long = word & step::KIND == step::SET && step::is_long(word);
            let is_destination = step::field(word) == Some(Field::Destination);
            let address = addresses[usize::from(is_destination)];
            let behind = is_long.then_some(address).into_iter().flatten();
            std::iter::once(word).chain(behind)
        })
    }

    /// Returns true if an action of the set changes the packet.
    pub fn changes(&self) -> bool {
        self.steps.iter().any(|word| step::changes(*word))
    }
}
