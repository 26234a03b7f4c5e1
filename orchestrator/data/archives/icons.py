"""Icons: the same sign of user interfaces in forty sets, black on white."""

from collections.abc import Sequence
from pathlib import Path

from orchestrator.data.archives.iconify import iconify_package, read_signs
from orchestrator.data.archives.listing import Archive, Count, Counts, Listing
from orchestrator.registries import NpmTarball

AT_LEAST = 18
"""Vendors that must have drawn a sign."""
ENDINGS = {
    "ant-design": "-outlined",
    **dict.fromkeys(("clarity", "majesticons", "mingcute", "ri"), "-line"),
    **dict.fromkeys(("flowbite", "ion", "mdi", "teenyicons"), "-outline"),
}
"""Of vendors who draw in several styles: what the names of one style end with, which is no part of the sign's name."""
BRANDS = "apple bluetooth dribbble facebook github google instagram linkedin paypal twitter youtube"
SYNONYMS = "box comment dashboard forward group pen pencil printer redo stop table x"
"""Names of what another class shows as well: cube, chat, grid, fast-forward, users, edit, edit, print, refresh, square,
grid, close."""
LEFT_OUT = frozenset(f"{BRANDS} {SYNONYMS}".split())

ICON_SETS = (
    iconify_package("ant-design", "1.2.9", 170_003,
                    "cAP5tQXUj05Hb0o3nyjEzYofuU5luRm6IV4FNZ3KQkG2cfzvmM34WYJuNLA3/sWqfE0cHSaaaEGvIdAUq+bN2Q=="),
    iconify_package("bi", "1.2.7", 223_701,
                    "IPz8WNxmLkH1I9msl+0Q4OnmjjvP4uU0Z61a4i4sqonB6vKSbMGUWuGn8/YuuszlReVj8rf+3gNv5JU8Xoljyg=="),
    iconify_package("bx", "1.2.3", 203_375,
                    "ihvX+2d688otgW7MAvUEdKVln+fZ28BJTlygazKUU/+RCODWT+2KObjAHe8+KPs4VhC8V6Tgoy1qrX0Myn/upA=="),
    iconify_package("carbon", "1.2.29", 329_961,
                    "whk3BOU2jXFtweigCrrrYXT7NzWXGUT1q268vEnySzhfdnwZhQhVlFjhkgZH86JRRx21/CziTmzpAJMe5V2yKQ=="),
    iconify_package("ci", "1.2.2", 61_519,
                    "RKqJ2nb48Hk2doM1ljZHRrNCiuzlXhji9xtnPm4VwmTcjUDOkkbrQSHyE7JNRducsP6uVNwDz4J3AaWZG1PxTg=="),
    iconify_package("cil", "1.2.3", 87_040,
                    "byZH2wJeow6DO/+mYGwjlG5Gm2ZARJ1Rpr7Ryh4EcAFU0rH+AWoKbAUrBZMh1EU7jsVI4bKM95SLSsrWQ44sEw=="),
    iconify_package("clarity", "1.2.4", 133_903,
                    "9hQ405dgvK2b2BWQdAIb/+ayH02k5VE4lKw2456wpjtq+57shHXE4Kk8bFa7RwchQHFuTtJBItVhlU4kjejxDw=="),
    iconify_package("fa6-solid", "1.2.4", 236_394,
                    "LmDNNdJVyvF5mPm1yxWvL8KjCc/E8LzoqnF1LNTVpyY2ZJRUlGOWuPIThdbuFBF2IovgttkIyumhyqfmlHdwKg=="),
    iconify_package("flowbite", "1.2.7", 88_788,
                    "YmjHMSe6zBWI6XMZ35OGxgkX9k0lMiKmJIYOOymhc8rEiVbtZnnujJnGrfTider1JOoArQcCJzhHH6hUoXgiYA=="),
    iconify_package("fluent-mdl2", "1.2.1", 233_172,
                    "zFgd1V9r0a+mqA46Z4mOoSf6PbQbhYnY9Uhtpjl3xvw03doNolh4apMtsZoLlC/Y7wO2uj306MgziaqwWdNMwg=="),
    iconify_package("fontisto", "1.2.1", 287_557,
                    "RoZA/Cqey08bGWB5MD8KPMQuic4ZA3iH3ruuFI85bi0svmEXO9npnTTkNwnRXLM/DLcUYJSEJ9wNrvSYgKs+Jg=="),
    iconify_package("gg", "1.2.2", 44_172,
                    "8iQh8+Tdb/0jakNYy0+t2GVubjhbaJbuYoPsRhFw8IAs00IQV2BjE9GoB2kGF/UObaJCqvCelB3qRaUdizkrmg=="),
    iconify_package("gravity-ui", "1.2.15", 106_705,
                    "Ie0pg8eATIY1C46ThgA5htRTb8oJg+GdXwLNTqRKnsw4HQYJWBuIqa4xzRwgJecesxqm7avolDNyP9TZGwoYww=="),
    iconify_package("grommet-icons", "1.2.4", 79_627,
                    "Muj6ViEbR235PWxDe3oM3AFVG4BtaeIihfJPhQiHWPShy24MAscq02+T1IFwIMy0MoTw+V71p5EbNa69xF7SmA=="),
    iconify_package("hugeicons", "1.2.35", 809_402,
                    "c06tY90JZnKhOLBAKoQ1z2pqXMRdATuYXslTKwaaIAjLzKsTIsE+GGknY6+qo/SP0U/NG9xQjr4N+zfDqOeQiQ=="),
    iconify_package("humbleicons", "1.2.20", 16_996,
                    "7OPG7mKu1GtEiMr68d8dWqADCavmFawZ0Wv1Dbi2g8UE2m1e/AtA0ryx2IAEf5YUFGwJ9Bx8qs8719mXdAzCkw=="),
    iconify_package("icon-park-outline", "1.2.4", 222_800,
                    "NyZxXe2gD2TbTOyoRRMdtEJhr6i2KQCdDlYYoOn5oZLndQjwpIhw79hzeFhXvP38/o40D3gQ+l+IaSJgbB+0TQ=="),
    iconify_package("iconoir", "1.2.11", 126_216,
                    "clBrCsZPkmdksYOkufVp7aoAU1j1hFQPrLUooWWmoYIMvKskUHQ+IDnwV7agTR+tGYHbud7OP2SRfYEpnqFDNw=="),
    iconify_package("ion", "1.2.7", 428_378,
                    "ZJNG5kLCbTPr68mdP0jx6Q3lB9AMEQKO2+VvIjuJ2llGFICBLD+cvESn/qGDRIqSfk2D3PrFMf/Qg8WKIUV7cg=="),
    iconify_package("ix", "1.2.12", 240_709,
                    "TteQ8jYbR/R86lS9U9gHCV8cRSa7YhTa8YoBkYPXeUOnmFGyRvhOPYGF68csUzHUKEfxdR55fSG8RgmhmgSqYA=="),
    iconify_package("jam", "1.2.3", 96_710,
                    "Kp+OxTzB8xvbaMyIoqEqB96Ik4zv7uo5y1yavjAee0N1K/6u+PCOBwEi+Djn3WJ2trCrNZk+qYw1BJUsZC41Eg=="),
    iconify_package("la", "1.2.1", 366_139,
                    "7VUpZ+E7PfBpCXmAzLEGRR0LqCyFQRJiJTriO/vIZtQ1BLJ4xiDlIQ8gCCQvyTnKPG4IrvencwAxXpJGhk4pYg=="),
    iconify_package("lucide", "1.2.137", 92_640,
                    "uKz1+tFbv1RFX/mJQNksdnyKJijNfRGSNnxfiyKtr+dLNfA3ERph+IgpXClKGOlV/5GsZwLv2jgJXQ/bjF/JAg=="),
    iconify_package("mage", "1.2.4", 136_563,
                    "QZnjHtV/RP9/bF6n7bHSnXMPX/MW5dpHqOH2pEHiEytUx76OKrUZ55YBFwrAxPz5f3BoCeWMY1wyEQQD36Bkkw=="),
    iconify_package("majesticons", "1.2.5", 73_098,
                    "tj0ZTiYOkz8HC365x7Pj8vXCsHCjVuFXcwoFG0iuMlvLrHslVlFhSTLjt/x/5r0ciCrtA5tLGpbV1uG0fdC56g=="),
    iconify_package("mdi", "1.2.3", 803_764,
                    "O3cLwbDOK7NNDf2ihaQOH5F9JglnulNDFV7WprU2dSoZu3h3cWH//h74uQAB87brHmvFVxIOkuBX2sZSzYhScg=="),
    iconify_package("mingcute", "1.2.8", 406_467,
                    "J8VXpRwTpx5yzOzyhx3T4IXnfXIKTWFl3rZ9okcW4c+NMMuwkLvdmM4rkjB83tnYIhg5+kkeMpmw8tvSnxd4rQ=="),
    iconify_package("mynaui", "1.2.19", 241_161,
                    "Nsoo0jaZLM7Ws45TDiSxBDGgWdbpwhLfgRil/5tQeDJykdtmS5ILZsJ6fkCS1iNXURghhAiLipb15A1d7IQcEQ=="),
    iconify_package("ph", "1.2.2", 945_517,
                    "PgkEZNtqa8hBGjHXQa4pMwZa93hmfu8FUSjs/nv4oUU6yLsgv+gh9nu28Kqi8Fz9CCVu4hj1MZs9/60J57IzFw=="),
    iconify_package("pixelarticons", "1.2.9", 46_967,
                    "euvs0Lwcoo5CAz5VicRlxWxO/Aqk/nOxbUhPkXCqWl3ua79H6XVrtWWGVIwugecCBwMrxltf2ArD5O41MNRGSw=="),
    iconify_package("prime", "1.2.5", 40_485,
                    "5eiiFlr5dx/IDSolBmBeys7407lSuO0gPL5iAeJBckpyaxCB6HYsDW3AFVP5pMI6hm/B5hYjlN1TrSualSBCFA=="),
    iconify_package("proicons", "1.2.20", 55_888,
                    "c8hyUi4mFRke8/MocQcY8GPqwpIWWv9dkGWB3I9O01EqRqCuNLEj+5PVzsrH4hOQ1gA6ysvPCr7nMZo3l5WhYQ=="),
    iconify_package("ri", "1.2.10", 270_261,
                    "WWMhoncVVM+Xmu9T5fgu2lhYRrKTEWhKk3Com0KiM111EeEsRLiASjpsFKnC/SrB6covhUp95r2mH8tGxhgd5Q=="),
    iconify_package("tabler", "1.2.41", 338_741,
                    "GHg+H/cnr0anaCoV383JONiOMxZQOdojWYNLgL3x0fRE07YW7c+AHiYmIhXet//oq26T830qitdP7l43ojiCXw=="),
    iconify_package("tdesign", "1.2.19", 193_347,
                    "YAEUidy7vJBAlGDMro1JWw5CZNO0EbeSb8SxNCsBuBq7hFtftlL2VhZac3EgHeTMMDf3OBfP/YwII7SIdb1d+w=="),
    iconify_package("teenyicons", "1.2.2", 103_892,
                    "Do08DrvNpT+pKVeyFqn7nZiIviAAY8KbduSfpNKzE1bgVekAIJ/AAJtOBSUFpV4vTk+hXw195+jmCv8/0cJSKA=="),
    iconify_package("uil", "1.2.3", 142_851,
                    "if91+UBhDQc6glPsIaXecGIcXnbQZfEO4Gdv89TV2xQ+V5e9GWbY5rNl2fsKZd8COsRQ5lRQAKimVQVL0CZZVg=="),
    iconify_package("vaadin", "1.2.1", 56_662,
                    "dT2PWQp5tPxqJsWCc7qXDRVMcGeOf3e+Hys1dcMQrfVVnaRgXxYXgA0Wj98N5QjZMIf9+/iqAKvY1Yuk484hEg=="),
    iconify_package("whh", "1.2.0", 313_299,
                    "SXXHEa6Dq5ELu/lXqDYk8qA/9vG1GMO+VukyF/ZLD9o1fmB+PKMSBugD6k2GVuJSb+whFhmtPA5LqdoyGK84+g=="),
    iconify_package("zmdi", "1.2.0", 73_105,
                    "cMBE/mibATuiSLir/oe9e6LHyxW9L7lxECZeNAi8/qypZ+eqICPT0vl0DVDAeKByP4B6hBMbbI/gYyIq4+K5mg=="),
)  # fmt: skip
"""The packages, a vendor each. Left out: sets drawn after another one of the table (a look that differs in at most 4
of 64 bits in more than a fifth of their common signs), and those under the GPL or not for commercial use."""


def read_icons(source: Path, sets: Sequence[NpmTarball] = ICON_SETS) -> Listing:
    """The sets in a folder of their tarballs: the signs that AT_LEAST of them have under one name, without those that
    are left out."""
    return read_signs(source, sets, AT_LEAST, _sign_of)


def _sign_of(vendor: str, name: str) -> str | None:
    ending = ENDINGS.get(vendor, "")
    sign = name.removesuffix(ending)
    return None if sign in LEFT_OUT or not name.endswith(ending) else sign


ICONS = Archive(
    name="icons",
    summary="the same sign in up to 40 sets of icons, black on white",
    origin="https://iconify.design",
    read=read_icons,
    counts=Counts(Count(4_612, 185)),
    pixels=True,
    packages=ICON_SETS,
    needs="resvg_py",
)
