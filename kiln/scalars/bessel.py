"""Bessel functions of order 0 and 1, as scalars of type f64.

I: a polynomial of x^2 / 4 up to 8; above, sqrt(x) e^-x I = P(16 / x - 1)
K: a polynomial of x^2 / 4 and log(x / 2) I up to 2; above, sqrt(x) e^x K = P(4 / x - 1)
J: (x^2 - zero^2) P(x^2) up to 5;  Y: P(x^2) and log(x) J.  Above, with u = 2 (5 / x)^2 - 1:
    sqrt(pi x / 2) J = P(u) cos c - Q(u) / x sin c,  Y with sin c and cos c, c = x - pi / 4 (- pi / 2)
"""

from __future__ import annotations

from math import inf, nan, pi

from kiln.scalars import mathematics as m
from kiln.scalars.floats import Pair, poly
from kiln.scalars.scalar import Scalar, absolute, const, fma, select, sqrt
from kiln.scalars.trigonometry import reduce_quarter, sin, sin_cos

I0_NEAR = (
    1.0, 1.0, 0.25, 0.027777777777777776, 0.001736111111111111, 6.944444444444444e-05,
    1.929012345679012e-06, 3.936759889140852e-08, 6.151187326782115e-10, 7.594058428141137e-12,
    7.594058427772978e-14, 6.276081352140591e-16, 4.358389729058394e-18, 2.5789299301424913e-20,
    1.315771219847635e-22, 5.848480176442992e-25, 2.281609904605368e-27, 7.99849815907091e-30,
    2.2203133629748542e-32, 9.782989051331864e-35,
)  # fmt: skip
I0_FAR = (
    0.4021765094450081, 0.0033605519836678614, 0.00013621607439193295, 1.1143033790931645e-05,
    1.4838475657120089e-06, 2.973598588669669e-07, 8.872219954305432e-08, 3.9325843222756527e-08,
    2.1548357105449815e-08, 7.55469269997528e-09, -6.747539222440306e-09, -1.3408920875396893e-08,
    -5.40519976120016e-09, 7.55259178721881e-09, 7.431481091326867e-09, -3.5059814912169867e-09,
    -5.9551789015095105e-09, 1.5200984188074996e-09, 3.639637827349885e-09, -5.715961240723327e-10,
    -1.6200969609487852e-09, 1.527967227074651e-10, 4.5813403094836936e-10, -2.0261421051255186e-11,
    -6.074719660595193e-11,
)  # fmt: skip
I1_NEAR = (
    1.0, 0.5, 0.08333333333333333, 0.006944444444444444, 0.00034722222222222224, 1.1574074074074073e-05,
    2.755731922398589e-07, 4.920949861426059e-09, 6.834652585313668e-11, 7.594058428135696e-13,
    6.90368947990243e-15, 5.2300677917883523e-17, 3.352607503356741e-19, 1.8420926328614477e-21,
    8.771819973140489e-24, 3.655240279850907e-26, 1.3423412848477622e-28, 4.438214397394023e-31,
    1.1767236310014832e-33, 4.835130013489837e-36,
)  # fmt: skip
I1_FAR = (
    0.38939845902587233, -0.009749577193235737, -0.0002192357638338823, -1.5038547200567478e-05,
    -1.8349101330315317e-06, -3.483855760976065e-07, -1.0001287672429324e-07, -4.3129177373696234e-08,
    -2.3373988230379026e-08, -8.42776554743195e-09, 6.734806283437301e-09, 1.403423655634247e-08,
    5.9732062267877994e-09, -7.642388311430349e-09, -7.885428612934807e-09, 3.426224164075569e-09,
    6.238113223508053e-09, -1.438713890906413e-09, -3.789831086806042e-09, 5.295547091029908e-10,
    1.6816888452701453e-09, -1.4011311715735206e-10, -4.746591625200761e-10, 1.8514573573428816e-11,
    6.285586270997607e-11,
)  # fmt: skip
K0_NEAR = (
    -0.5772156649015329, 0.4227843350984672, 0.23069608377461442, 0.03489215745646895,
    0.0026147876186100425, 0.00011848039436886487, 3.6126224518943577e-06, 7.935328221734045e-08,
    1.3147872835444892e-09, 1.8015393361176177e-11,
)  # fmt: skip
K0_FAR = (
    1.2185953385133905, -0.03107146182488952, 0.003032891810275319, -0.0004797690567659532,
    9.956054742036966e-05, -2.4735204568704573e-05, 7.002245644577108e-06, -2.191177701118066e-06,
    7.427801326563518e-07, -2.689072043091029e-07, 1.0295427351645311e-07, -4.133686910727196e-08,
    1.7047664202888045e-08, -7.292559091809018e-09, 3.8081599895209904e-09, -1.9203499867269547e-09,
    4.7863456515611876e-11, 1.6702671218839305e-10, 8.131766150195022e-10, -5.457912841573724e-10,
    -3.1190316877690204e-10, 2.1804950131989062e-10, 1.0925338407461055e-10, -6.852592934397427e-11,
)  # fmt: skip
K1_NEAR = (
    0.03860783245076643, -0.16819608377461678, -0.0453937917402138, -0.0047955474598340275,
    -0.00027883987298262203, -1.0355619256779136e-05, -2.678864022708974e-07, -5.113322023014738e-09,
    -7.496059771736609e-11, -9.163078017014258e-13,
)  # fmt: skip
K1_FAR = (
    1.363151890371342, 0.10334973775386522, -0.005566729880074589, 0.0007357241549090674,
    -0.00013959021956268456, 3.284386553440103e-05, -8.961207388338617e-06, 2.730041719838539e-06,
    -9.067087586225081e-07, 3.2297928315854127e-07, -1.2203188554495585e-07, 4.846972601341318e-08,
    -1.981751300597177e-08, 8.38905477341568e-09, -4.332059900727671e-09, 2.2106363729002655e-09,
    -8.321826552317528e-11, -2.187824763010401e-10, -8.909670424358926e-10, 6.315905862838024e-10,
    3.387232781776101e-10, -2.5087505195911053e-10, -1.1932491328484866e-10, 7.715018125389463e-11,
)  # fmt: skip
J0_NEAR = (
    -0.17291506903064494, 0.013329146159788531, -0.00039698772526443733, 6.404783237242976e-06,
    -6.517182621302991e-08, 4.573627895928707e-10, -2.349481790993102e-12, 9.220827216001566e-15,
    -2.855515527148186e-17, 7.156583514239123e-20, -1.4814348196658083e-22, 2.5755943599234676e-25,
    -3.810505332887105e-28, 4.788982975313022e-31, -4.46804066330615e-34,
)  # fmt: skip
Y0_NEAR = (
    -0.07380429510868723, 0.17760601686906713, -0.016073968025938426, 0.0005386026668616549,
    -9.49500520522148e-06, 1.0358476033625608e-07, -7.693079900842484e-10, 4.143565735505995e-12,
    -1.6932715060890564e-14, 5.4310596568158406e-17, -1.4038647139437302e-19, 2.9868932442484957e-22,
    -5.315756446195109e-25, 7.899323443242964e-28, -8.490573635243574e-31,
)  # fmt: skip
P0 = (
    0.9986347659091991, -0.0013274931272004003, 3.4917305812543486e-05, -2.459963321484891e-06,
    2.9759005474711905e-07, -5.08643230838394e-08, 1.1058787126508455e-08, -2.8705436149232575e-09,
    8.537333898998171e-10, -2.851794579729694e-10, 1.0446084050144923e-10, -3.538662922896775e-11,
    1.2588002430248643e-11, -1.3637307914439566e-11, 8.357591428468511e-12, 3.415311542572876e-12,
    -2.8395786688743523e-12, -2.235391154912044e-12, 1.4342144484717672e-12,
)  # fmt: skip
Q0 = (
    -0.12361496352611864, 0.0013142139729107809, -6.33871544273933e-05, 6.23911313883672e-06,
    -9.409874566961783e-07, 1.8870349477889027e-07, -4.639877418605767e-08, 1.3292702752146159e-08,
    -4.289354315206942e-09, 1.5435318904668162e-09, -6.04293829084546e-10, 2.0066666469443695e-10,
    -6.85705858303615e-11, 1.040800701933203e-10, -6.84157949075103e-11, -3.2451455373955425e-11,
    2.6853631098267475e-11, 1.8859746306018016e-11, -1.2508076456976504e-11,
)  # fmt: skip
J1_NEAR = (
    -0.03405537391318949, 0.0019373847544143917, -4.541501468060546e-05, 6.019939527912172e-07,
    -5.1882987538477456e-09, 3.1542400807221246e-11, -1.4282175991433572e-13, 5.008668188905088e-16,
    -1.40143255543553e-18, 3.202508528367287e-21, -6.090929045194344e-24, 9.793112645872793e-27,
    -1.3476619182478947e-29, 1.5861579813287835e-32, -1.4058065715773155e-35,
)  # fmt: skip
Y1_NEAR = (
    -0.19605709064623894, 0.05434868816051024, -0.0029553053360798338, 7.164268749973962e-05,
    -9.9267406194248e-07, 8.93187962121934e-09, -5.648024551576384e-11, 2.649481506687821e-13,
    -9.59148654857287e-16, 2.7616356593611907e-18, -6.476471144868884e-21, 1.2611030965470166e-23,
    -2.0695240992076326e-26, 2.858843004461353e-29, -2.8973624537130953e-32,
)  # fmt: skip
P1 = (
    1.0022906462560661, 0.002241463213917191, -4.5782806531265707e-05, 2.9786211051441743e-06,
    -3.4667186514153773e-07, 5.7916678422140156e-08, -1.2403215219140042e-08, 3.1849577586739448e-09,
    -9.395751413733448e-10, 3.117737074105936e-10, -1.1357643207946474e-10, 3.8451893184433864e-11,
    -1.3682028558855844e-11, 1.4551592853265448e-11, -8.878743173627245e-12, -3.5906738400843512e-12,
    2.988136888593515e-12, 2.368522528186767e-12, -1.516811852611783e-12,
)  # fmt: skip
Q1 = (
    0.3730474331740802, -0.0018648496218418749, 7.89809417818545e-05, -7.369927915299274e-06,
    1.079885314279598e-06, -2.1266795418156638e-07, 5.164244589339483e-08, -1.4660145323596705e-08,
    4.697491706930299e-09, -1.68026608567492e-09, 6.545020798796693e-10, -2.1767826861085838e-10,
    7.462088298658045e-11, -1.1069083648895406e-10, 7.247534834561339e-11, 3.4118244933315396e-11,
    -2.8238891623756554e-11, -1.9946832309158227e-11, 1.3206143080854314e-11,
)  # fmt: skip
I_TABLES = ((I0_NEAR, I0_FAR), (I1_NEAR, I1_FAR))
K_TABLES = ((K0_NEAR, K0_FAR), (K1_NEAR, K1_FAR))
# the first zero of J0 and J1 as a pair
J_TABLES = (
    (J0_NEAR, Y0_NEAR, P0, Q0, (2.404825557695773, -1.176691651530894e-16)),
    (J1_NEAR, Y1_NEAR, P1, Q1, (3.8317059702075125, -1.5269184090088067e-16)),
)


def i_parts(a: Scalar, order: int) -> Pair:
    """I(a) for a <= 8, and e^-a I(a) for a above; a >= 0."""
    near, far = I_TABLES[order]
    half = select(a > 8.0, 8.0, a) * 0.5
    series = poly(half * half, near)
    inverse = 1.0 / select(a > 8.0, a, 8.0)
    return series * half if order else series, poly(fma(inverse, 16.0, -1.0), far) * sqrt(inverse)


def odd(x: Scalar, value: Scalar, order: int) -> Scalar:
    """The value at |x| with x's sign, for an odd order."""
    return select(x < 0.0, -value, value) if order else value


def bessel_i(x: Scalar, order: int) -> Scalar:
    """The modified Bessel function of the first kind."""
    a = absolute(x)
    near, far = i_parts(a, order)
    low = select(a > 8.0, select(a > 720.0, 720.0, a), 8.0)
    hi, lo = m.exp_pair(low, less=8.0)  # e^a alone is infinite before the function is
    value = select(a > 8.0, fma(hi, far, lo * far) * 256.0, near)
    return odd(x, select(a < inf, value, a), order)


def bessel_ie(x: Scalar, order: int) -> Scalar:
    """e^-|x| times the modified Bessel function of the first kind."""
    a = absolute(x)
    near, far = i_parts(a, order)
    return odd(x, select(a > 8.0, far, near * m.exp(-select(a > 8.0, 8.0, a))), order)


def bessel_k(x: Scalar, order: int, scaled: bool) -> Scalar:
    """The modified Bessel function of the second kind, times e^x if `scaled`; infinite at 0, NaN below."""
    near_table, far_table = K_TABLES[order]
    low = select(x > 2.0, 2.0, x)
    half = low * 0.5
    logarithm, series = m.log(half), poly(half * half, near_table)
    near = fma(-logarithm, i_parts(low, 0)[0], series)
    if order:
        near = fma(logarithm, i_parts(low, 1)[0], fma(series, low, 1.0 / low))
    inverse = 1.0 / select(x > 2.0, x, 2.0)
    far = poly(fma(inverse, 4.0, -1.0), far_table) * sqrt(inverse)
    near, far = (near * m.exp(low), far) if scaled else (near, far * m.exp(-x))
    value = select(x > 2.0, select(x.eq(inf), 0.0, far), near)
    return select(x > 0.0, value, select(x.eq(0.0), const(inf, "f64"), nan))


def oscillation(a: Scalar, order: int) -> Pair:
    """J and Y at a >= 5."""
    *_, p, q, _ = J_TABLES[order]
    inverse = 1.0 / a
    five = inverse * 5.0
    u = fma(five * five, 2.0, -1.0)
    quarter, r, lo = reduce_quarter(a)
    sine, cosine = sin_cos(r, lo)
    odd, negative = (quarter & 1).ne(0), (quarter & 2).ne(0)
    sine, cosine = select(odd, cosine, sine), select(odd, -sine, cosine)
    sine, cosine = select(negative, -sine, sine), select(negative, -cosine, cosine)
    # sqrt(2) cos and sin of a - pi / 4, or of a - 3 pi / 4
    less, more = sine - cosine, sine + cosine
    cos_c, sin_c = (less, -more) if order else (more, less)
    level, slope = poly(u, p), poly(u, q) * inverse
    height = sqrt(inverse * (1 / pi))
    return height * (level * cos_c - slope * sin_c), height * (level * sin_c + slope * cos_c)


def j_near(a: Scalar, order: int) -> Scalar:
    """J at a <= 5, relative to its value up to its first zero and beyond."""
    table, *_, (zero, zero_lo) = J_TABLES[order]
    value = ((a - zero) - zero_lo) * (a + zero) * poly(a * a, table)
    return value * a if order else select(a < 2.0**-27, 1.0, value)


def bessel_j(x: Scalar, order: int) -> Scalar:
    """The Bessel function of the first kind."""
    a = absolute(x)
    far = oscillation(select(a > 5.0, a, 5.0), order)[0]
    value = select(a > 5.0, far, j_near(select(a > 5.0, 5.0, a), order))
    return odd(x, select(a.eq(inf), 0.0, value), order)


def bessel_y(x: Scalar, order: int) -> Scalar:
    """The Bessel function of the second kind; -inf at 0, NaN below."""
    low = select(x > 5.0, 5.0, x)
    series, logarithm, j = poly(low * low, J_TABLES[order][1]), m.log(low), j_near(low, order)
    near = fma(logarithm * (2 / pi), j, series)
    if order:
        near = fma(logarithm * (2 / pi), j, fma(series, low, -(2 / pi) / low))
    far = oscillation(select(x > 5.0, x, 5.0), order)[1]
    value = select(x > 5.0, select(x.eq(inf), 0.0, far), near)
    return select(x > 0.0, value, select(x.eq(0.0), const(-inf, "f64"), nan))


def spherical_j(x: Scalar) -> Scalar:
    """The spherical Bessel function of order 0: sin x / x, 1 at 0, 0 at the infinities."""
    value = select(x.eq(0.0), 1.0, sin(x) / x)
    return select(absolute(x).eq(inf), 0.0, value)
