//! The search for information elements of a PFCP group by their type.

use super::refusal::Refusal;
use taut_wire::pfcp::{Element, ElementType};

/// Returns the first information element of a type in a group; none if the group has no such element.
pub(super) fn look<'a>(
    group: &Element<'a>,
    element_type: ElementType,
) -> Result<Option<Element<'a>>, Refusal> {
    for element in group.group() {
        let element = element?;
        if element.element_type == element_type {
            return Ok(Some(element));
        }
    }
    Ok(None)
}

/// Returns the first information element of a type in a group; fails if the group has no such element.
pub(super) fn find<'a>(
    group: &Element<'a>,
    element_type: ElementType,
) -> Result<Element<'a>, Refusal> {
    look(group, element_type)?.ok_or(Refusal::missing(element_type))
}

/// Returns the information elements of a type among `elements`, in order.
pub(super) fn of_type<'e, 'a>(
    elements: &'e [Element<'a>],
    element_type: ElementType,
) -> impl Iterator<Item = &'e Element<'a>> {
    elements
        .iter()
        .filter(move |element| element.element_type == element_type)
}
