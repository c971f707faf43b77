//! GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11D), that of Reed-Solomon codes and of ISA-L.

/// The polynomial of the Galois field without its highest term.
const POLYNOMIAL: u8 = 0x1D;

/// Returns the product of two elements of GF(2^8), bit by bit.
const fn slow_product(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut product) = (a, b, 0);
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        let carry = a & 0x80 != 0;
        a <<= 1;
        if carry {
            a ^= POLYNOMIAL;
        }
        b >>= 1;
    }
    product
}

/// Returns the powers of 2 and the logarithms to base 2. The powers of 2 are all elements except 0. They repeat after
/// 255, and the table contains two cycles, so that the sum of two logarithms is a valid index.
const fn powers() -> ([u8; 512], [u8; 256]) {
    let (mut powers, mut logarithms) = ([0; 512], [0; 256]);
    let mut element = 1;
    let mut exponent = 0;
    while exponent < 255 {
        powers[exponent] = element;
        powers[exponent + 255] = element;
        logarithms[element as usize] = exponent as u8;
        element = slow_product(element, 2);
        exponent += 1;
    }
    (powers, logarithms)
}

static POWERS: [u8; 512] = powers().0;
static LOGARITHMS: [u8; 256] = powers().1;

/// Returns the product of two elements of GF(2^8).
pub fn product(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let sum = usize::from(LOGARITHMS[usize::from(a)]) + usize::from(LOGARITHMS[usize::from(b)]);
    POWERS[sum]
}

/// Returns the inverse of an element of GF(2^8), whose product with `a` is 1. Returns 0 for 0, which has no inverse.
pub fn inverse(a: u8) -> u8 {
    if a == 0 {
        return 0;
    }
    POWERS[255 - usize::from(LOGARITHMS[usize::from(a)])]
}

/// For each coefficient, its products with every low half and every high half of a byte, for lookup by a shuffle.
pub(crate) static HALVES: [[u8; 32]; 256] = {
    let mut all = [[0; 32]; 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        let mut half = 0;
        while half < 16 {
            all[coefficient][half] = slow_product(coefficient as u8, half as u8);
            all[coefficient][half + 16] = slow_product(coefficient as u8, (half as u8) << 4);
            half += 1;
        }
        coefficient += 1;
    }
    all
};

/// For each coefficient, a matrix of 8 x 8 bits that multiplies a byte by the coefficient, in the format of
/// `GF2P8AFFINEQB`. The row for the lowest bit of the result is in the highest byte.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) static MATRICES: [u64; 256] = {
    let mut all = [0; 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        let mut matrix = 0_u64;
        let mut column = 0;
        while column < 8 {
            let image = slow_product(coefficient as u8, 1 << column);
            let mut row = 0;
            while row < 8 {
                if image >> row & 1 != 0 {
                    matrix |= 1 << ((7 - row) * 8 + column);
                }
                row += 1;
            }
            column += 1;
        }
        all[coefficient] = matrix;
        coefficient += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_inverses_satisfy_the_field_axioms() {
        // x^7 times x is x^4 + x^3 + x^2 + 1.
        assert_eq!(product(0x80, 2), 0x1D);
        for a in 0..=255 {
            assert_eq!(product(a, 1), a);
            assert_eq!(product(a, inverse(a)), u8::from(a != 0));
            for b in 0..=255 {
                assert_eq!(product(a, b), slow_product(a, b));
                assert_eq!(product(a, b), product(b, a));
                let c = a.rotate_left(3) ^ 0x5A;
                assert_eq!(product(a, b ^ c), product(a, b) ^ product(a, c));
                assert_eq!(product(a, product(b, c)), product(product(a, b), c));
            }
        }
    }

    #[test]
    fn the_lookup_tables_of_the_kernels_multiply_correctly() {
        for c in 0..=255_u8 {
            for a in 0..=255_u8 {
                let halves = &HALVES[usize::from(c)];
                let looked_up = halves[usize::from(a & 15)] ^ halves[16 + usize::from(a >> 4)];
                assert_eq!(looked_up, product(c, a));
                let mut affine = 0;
                for row in 0..8 {
                    let bits = (MATRICES[usize::from(c)] >> ((7 - row) * 8)) as u8 & a;
                    affine |= (bits.count_ones() as u8 & 1) << row;
                }
                assert_eq!(affine, product(c, a));
            }
        }
    }
}
